"""Strategies of evosax through the adapter; ``python -m benchmarks.learning.evosax_strategies`` runs all of them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.learning.evosax_strategies import FAST_COMPILE, START, evolve, fitness_of
from evorl.ec import EvoOptimizer
from evorl.ec.evosax import EvosaxStrategy
from evorl.types import PyTreeDict
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.populations import flat
from tests.support.small_workflows import assert_close

# One of each kind: with mean and standard deviation; with a schedule for it; with limited memory; with several
# populations; without a start; with a population; with a schedule added to the learned parameters.
KINDS = ["CMA_ES", "Open_ES", "LM_MA_ES", "SV_CMA_ES", "RandomSearch", "SimpleGA", "iAMaLGaM_Univariate"]


class TestContract(EvoOptimizerContract):
    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return EvosaxStrategy(pop_size=pop_size, strategy="SNES", initial_std=0.2)


@pytest.mark.parametrize("name", KINDS)
def test_a_strategy_gets_better_on_a_sphere(name: str) -> None:
    strategy = EvosaxStrategy(pop_size=32, strategy=name, initial_std=0.3)
    state, means = evolve(strategy, jax.random.key(0), 30)
    assert np.isfinite(means).all()
    solution = strategy.solution(state)
    assert jax.tree.structure(solution) == jax.tree.structure(PyTreeDict(START))
    assert fitness_of(solution) > fitness_of(START)
    if name in ("CMA_ES", "SimpleGA", "iAMaLGaM_Univariate"):
        assert means[-1] > 0.5 * means[0]


@pytest.fixture(scope="module")
def strategy() -> EvosaxStrategy:
    return EvosaxStrategy(pop_size=6, strategy="SNES", initial_std=0.2)


@pytest.fixture(scope="module")
def state(strategy: EvosaxStrategy) -> PyTreeDict:
    return strategy.init(START, jax.random.key(1))


def test_fitness_is_maximized_and_a_failure_is_the_worst(strategy: EvosaxStrategy, state: PyTreeDict) -> None:
    numbers = flat(strategy.ask(state), 1)
    towards = numbers[2] - numbers.mean(axis=0)
    fitness = jnp.zeros(6).at[2].set(1.0)
    after = strategy.tell(state, fitness)
    assert (flat(strategy.solution(after)) - flat(strategy.solution(state))) @ towards > 0
    worst, failed = (strategy.tell(state, jnp.arange(6.0).at[4].set(value)) for value in (-1e6, jnp.nan))
    assert_close(strategy.solution(failed), strategy.solution(worst), 1e-6)


@pytest.mark.parametrize(("name", "worst"), [("GuidedES", 0.0), ("SimpleGA", -1e30)])
def test_a_failure_is_the_worst_of_the_generation_or_no_better_than_a_parent(name: str, worst: float) -> None:
    """Strategies that use the fitness unshaped get no huge number. Their parents, if kept, have a cost of 1e30."""
    strategy = EvosaxStrategy(pop_size=6, strategy=name, initial_std=0.2)
    state = strategy.init(START, jax.random.key(1))
    expected, *failed = (
        strategy.tell(state, jnp.arange(6.0).at[4].set(value)) for value in (worst, jnp.nan, jnp.inf, -jnp.inf)
    )
    assert np.abs(flat(strategy.solution(expected))).max() < 100.0
    for after in failed:
        assert_close(after.inner, expected.inner, 1e-6)


@pytest.mark.parametrize("name", ["SV_CMA_ES", "RandomSearch", "SimpleGA"])
def test_the_solution_is_finite_until_fitness_differs(name: str) -> None:
    """Before the first generation, and after a generation whose individuals are equally fit or all fail."""
    strategy = EvosaxStrategy(pop_size=16, strategy=name)

    def solutions(key: jax.Array) -> tuple:
        state = strategy.init(START, key)
        fitness = jnp.full((2, 16), jnp.nan).at[0].set(-200.0)
        return strategy.solution(state), jax.vmap(lambda x: strategy.solution(strategy.tell(state, x)))(fitness)

    first, later = jax.jit(solutions, compiler_options=FAST_COMPILE)(jax.random.key(0))
    assert np.isfinite(flat(first)).all()
    assert np.isfinite(flat(later, 1)).all()


@pytest.mark.parametrize("name", ["Open_ES", "RandomSearch", "iAMaLGaM_Univariate"])
def test_the_first_samples_have_the_standard_deviation_asked_for(name: str) -> None:
    strategy = EvosaxStrategy(pop_size=200, strategy=name, initial_std=0.05)
    start = {"x": jnp.full(10, 3.0)}
    first = jax.jit(lambda key: strategy.ask(strategy.init(start, key)), compiler_options=FAST_COMPILE)
    numbers = flat(first(jax.random.key(0)), 1)
    np.testing.assert_allclose(numbers.mean(), 3.0, atol=0.05)
    np.testing.assert_allclose(numbers.std(), 0.05, rtol=0.1)


def test_numbers_of_a_strategy_by_name(strategy: EvosaxStrategy) -> None:
    """Settings of the strategy are used by name: with a rate of 0, standard deviations do not change."""
    still = strategy.replace(params=PyTreeDict(lr_std_init=0.0))
    state = still.init(START, jax.random.key(1))
    after = still.tell(state, jnp.arange(6.0))
    np.testing.assert_array_equal(after.inner.std, state.inner.std)
    after = strategy.tell(strategy.init(START, jax.random.key(1)), jnp.arange(6.0))
    assert (np.asarray(after.inner.std) != 0.2).all()


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"strategy": "CMAES"}, ("'CMAES'", "'CMA_ES'")),
        ({"params": PyTreeDict(c_men=0.1)}, ("CMA_ES", "'c_men'", "'c_mean'")),
        *(
            ({"params": PyTreeDict(c_mean=x)}, ("params.c_mean of evosax's CMA_ES", "number", "got"))
            for x in ("abc", math.nan, math.inf, [1, 2], None, True)
        ),
        ({"strategy": "LES", "pop_size": 1}, ("LES", "pop_size=1 ", "at least 2")),
        ({"strategy": "SV_CMA_ES", "pop_size": 6}, ("pop_size=6", "num_populations=4")),
        ({"strategy": "SV_CMA_ES", "num_populations": 0}, ("num_populations", "got 0")),
        ({"strategy": "SV_Open_ES", "num_populations": -2}, ("num_populations", "got -2")),
        ({"strategy": "Open_ES", "pop_size": 5}, ("Open_ES", "pop_size=5", "even")),
        *(
            (
                {"strategy": "SV_Open_ES", "pop_size": p, "num_populations": n},
                (f"pop_size={p} ", f"multiple of {2 * n}"),
            )
            for p, n in [(4, 4), (12, 4), (1, 1), (15, 3), (9, 2)]
        ),
        ({"strategy": "iAMaLGaM_Full", "pop_size": 1}, ("iAMaLGaM_Full", "pop_size=1")),
    ],
)
def test_what_there_is_not_is_refused_in_words(fields: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        EvosaxStrategy(**{"pop_size": 8, **fields})


def test_a_parameter_may_be_a_flag() -> None:
    assert not EvosaxStrategy(8, "DifferentialEvolution", params=PyTreeDict(elitism=False)).params["elitism"]
    with raises_naming(ValueError, "params.elitism", "true or false", "got 1"):
        EvosaxStrategy(8, "DifferentialEvolution", params=PyTreeDict(elitism=1))
