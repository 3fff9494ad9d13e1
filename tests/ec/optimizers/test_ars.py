"""ARS equals algorithm 2 of its paper."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import ARS
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.populations import FITNESS, POP_SIZE, flat, later, parts_of

SECOND_IS_BETTER = np.array([1.0, 9.0, 5.0, 2.0, 3.0, 4.0], np.float32)  # the best pair by its second side only


class TestContract(EvoOptimizerContract):
    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return ARS(pop_size=pop_size)


@pytest.mark.parametrize("num_elites", [None, 1, 2])
@pytest.mark.parametrize("fitness", [FITNESS, SECOND_IS_BETTER])
def test_a_step_along_the_best_directions(num_elites: int | None, fitness: np.ndarray) -> None:
    optimizer = ARS(pop_size=POP_SIZE, num_elites=num_elites, learning_rate=0.3, noise_std=0.2)
    state = later(optimizer)
    mean, std, noise = parts_of(optimizer, state)
    np.testing.assert_allclose(std, 0.2)
    pairs = sorted(range(3), key=lambda k: -max(fitness[2 * k], fitness[2 * k + 1]))[: num_elites or 3]
    returns = [fitness[i] for k in pairs for i in (2 * k, 2 * k + 1)]
    step = np.zeros_like(mean)
    for k in pairs:
        np.testing.assert_allclose(noise[2 * k], -noise[2 * k + 1], atol=1e-5)
        step += (fitness[2 * k] - fitness[2 * k + 1]) * noise[2 * k]
    expected = mean + 0.3 / (len(pairs) * np.std(returns)) * step
    after = optimizer.tell(state, jnp.asarray(fitness))
    np.testing.assert_allclose(flat(after.mean), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outcome", [1.0, 500.0, -1234.5])
def test_equal_outcomes_move_nothing(outcome: float) -> None:
    """If all outcomes are equal, the mean does not move at all."""
    optimizer = ARS(pop_size=64)
    state = optimizer.init(jnp.zeros(10), jax.random.key(0))
    after = jax.jit(ARS.tell)(optimizer, state, jnp.full(64, outcome))  # compiled: products are fused with sums
    np.testing.assert_array_equal(after.mean, jnp.zeros(10))


def test_what_cannot_work_is_refused() -> None:
    with raises_naming(ValueError, "num_elites=4", "3 directions", "pop_size=6", "1 to 3"):
        ARS(pop_size=POP_SIZE, num_elites=4)
    with raises_naming(ValueError, "ARS", "mirror_sampling true", "mirror_sampling=false"):
        ARS(pop_size=POP_SIZE, mirror_sampling=False)
