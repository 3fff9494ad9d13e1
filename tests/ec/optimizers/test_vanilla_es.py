"""VanillaES equals its formula."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import VanillaES
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.populations import FITNESS, POP_SIZE, flat, later, parts_of


class TestContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return VanillaES(pop_size=pop_size)


@pytest.mark.parametrize("mirror_sampling", [True, False])
@pytest.mark.parametrize("num_elites", [None, 2])
def test_the_mean_goes_to_the_weighted_best(num_elites: int | None, mirror_sampling: bool) -> None:
    optimizer = VanillaES(pop_size=POP_SIZE, num_elites=num_elites, mirror_sampling=mirror_sampling)
    state = later(optimizer)
    population = flat(optimizer.ask(state), 1)
    _, std, _ = parts_of(optimizer, state)
    np.testing.assert_allclose(std, 0.1 * 0.99**2, rtol=1e-5)
    count = num_elites or POP_SIZE // 2
    weights = np.log(count + 0.5) - np.log(np.arange(1, count + 1))
    best = population[np.argsort(-FITNESS)[:count]]
    after = optimizer.tell(state, jnp.asarray(FITNESS))
    np.testing.assert_allclose(flat(after.mean), weights @ best / weights.sum(), rtol=1e-5, atol=1e-6)
    assert after.generation == 3


def test_more_elites_than_individuals_are_refused() -> None:
    with raises_naming(ValueError, "num_elites=7", "population of 6", "1 to 6"):
        VanillaES(pop_size=POP_SIZE, num_elites=7)
