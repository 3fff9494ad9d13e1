"""SepCEM equals its formula."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.optimizers import SepCEM
from evorl.ops.schedules import ExponentialScheduleSpec
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.populations import FITNESS, POP_SIZE, flat, later

EXTRA = ExponentialScheduleSpec(init=0.08, final=0.0, decay=0.5)


class TestContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return SepCEM(pop_size=pop_size)


class TestUnpairedContract(EvoOptimizerContract):
    takes_others = True
    chunk_tolerance = 1e-6  # the compiler decides if a fused multiply-add rounds once or twice

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return SepCEM(pop_size=pop_size, mirror_sampling=False)


@pytest.mark.parametrize("elite_weights", ["log", "equal"])
@pytest.mark.parametrize("mirror_sampling", [True, False])
def test_mean_and_variances_of_the_best(elite_weights: str, mirror_sampling: bool) -> None:
    optimizer = SepCEM(
        pop_size=POP_SIZE,
        num_elites=4,
        initial_std=0.3,
        elite_weights=elite_weights,  # pyright: ignore[reportArgumentType]
        extra_variance=EXTRA,
        variance_divisor=4.0 if elite_weights == "equal" else 1.0,
        mirror_sampling=mirror_sampling,
    )
    state = later(optimizer)
    population, mean = flat(optimizer.ask(state), 1), flat(state.mean)
    np.testing.assert_allclose(flat(optimizer.scale(state)), np.sqrt(0.3**2 + 0.02), rtol=1e-5)
    weights = np.log(4.5) - np.log(np.arange(1, 5)) if elite_weights == "log" else np.ones(4)
    weights /= weights.sum()
    best = population[np.argsort(-FITNESS)[:4]]
    after = optimizer.tell(state, jnp.asarray(FITNESS))
    np.testing.assert_allclose(flat(after.mean), weights @ best, rtol=1e-5, atol=1e-6)
    variance = weights @ (best - mean) ** 2 / optimizer.variance_divisor
    np.testing.assert_allclose(flat(after.variance), variance, rtol=1e-4, atol=1e-6)


def test_more_elites_than_individuals_are_refused() -> None:
    with raises_naming(ValueError, "num_elites=0", "population of 6", "1 to 6"):
        SepCEM(pop_size=POP_SIZE, num_elites=0)
