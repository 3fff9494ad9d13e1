"""Common properties of strategies that sample around a mean."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.ec.gaussian import GaussianStrategy
from evorl.ec.optimizers import ARS, OpenES, SepCEM, VanillaES
from tests.support.errors import raises_naming
from tests.support.populations import POP_SIZE, SOLUTION, flat, later, parts_of


def test_generations_and_seeds_draw_other_noise() -> None:
    optimizer = OpenES(pop_size=POP_SIZE)
    numbers = [parts_of(optimizer, later(optimizer, generation))[2] for generation in range(3)]
    other_key = later(optimizer, 0).replace(key=jax.random.key(4))
    numbers.append(parts_of(optimizer, other_key)[2])
    halves = np.stack(numbers)[:, ::2]
    assert len(np.unique(halves.round(4))) > 0.98 * halves.size


def test_a_search_starts_around_the_solution() -> None:
    optimizer = VanillaES(pop_size=POP_SIZE)
    state = optimizer.init(SOLUTION, jax.random.key(0))
    np.testing.assert_array_equal(flat(optimizer.solution(state)), flat(SOLUTION))


@pytest.mark.parametrize(("optimizer", "pop_size"), [(OpenES, 5), (ARS, 3), (SepCEM, 7)])
def test_pairs_need_an_even_population(optimizer: type[GaussianStrategy], pop_size: int) -> None:
    with raises_naming(ValueError, f"pop_size={pop_size}", "even", "mirror_sampling"):
        optimizer(pop_size=pop_size)
    with raises_naming(ValueError, "pop_size=1", "at least 2"):
        optimizer(pop_size=1, mirror_sampling=False)
