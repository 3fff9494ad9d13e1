"""Long runs of every optimizer: numbers stay finite, and the best solution is preserved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.evosax import EvosaxStrategy
from evorl.ec.optimizers import MULTI_OBJECTIVE_OPTIMIZERS, OPTIMIZERS
from evorl.ec.safeguards import MAX_STD, MIN_STD, advance, finite_or
from evorl.types import PyTreeDict

START = {"x": jnp.array([0.7, -0.4])}
PROBLEMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "flat": lambda x: jnp.zeros(()),
    "linear": lambda x: x.sum(),
    "sphere": lambda x: -jnp.square(x).sum(),
    "ellipsoid": lambda x: -(jnp.array([1.0, 1e6]) * jnp.square(x)).sum(),
    "great": lambda x: -3e38 * jnp.tanh(jnp.square(x).sum()),
}
FAILURES = jnp.array([jnp.nan, jnp.inf, -jnp.inf])
LANES = [(problem, rate) for problem in range(len(PROBLEMS)) for rate in (0.0, 0.25)]
EARLY = 100
# Around an optimum, strategies whose spread or steps have a lower bound keep moving by it. They may lose twice the
# greatest loss that was measured with both population sizes: 767 (ars) and 721 (vanilla_es) on the ellipsoid, which is
# -160,000 at the start, and 14.7 (sepcem). The other optimizers lost nothing, and may not.
FIXED_STEPS = {"sphere": 5e-3, "ellipsoid": 1.6e3, "great": 1.5e36}
FIXED_SPREAD = {"sphere": 1e-4, "ellipsoid": 30.0, "great": 2e34}
NOISE = {"ars": FIXED_STEPS, "vanilla_es": FIXED_STEPS, "sepcem": FIXED_SPREAD}
# Strategies of evosax, and two dimensions with a thousand individuals, were not measured one by one.
WIDE = {"sphere": 0.02, "ellipsoid": 2e3, "great": 3e36}


def _with_failures(key: jax.Array, fitness: jax.Array, rate: jax.Array, generation: jax.Array) -> jax.Array:
    """Fitness with some failures; every 50th generation fails as a whole where any do."""
    chance_key, kind_key = jax.random.split(key)
    rate = jnp.where((rate > 0) & (generation % 50 == 49), 1.0, rate)
    kinds = FAILURES[jax.random.randint(kind_key, fitness.shape, 0, 3)]
    return jnp.where(jax.random.uniform(chance_key, fitness.shape) < rate, kinds, fitness)


def _all_finite(tree: Any) -> jax.Array:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floats]).all()


def _run(optimizer: EvoOptimizer, num_generations: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether state and individuals were always finite, early and last fitness of the solution; by lane."""

    def lane(problem: jax.Array, rate: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def fitness_of(x: jax.Array) -> jax.Array:
            return jax.lax.switch(problem, list(PROBLEMS.values()), x)

        def generation(carry: tuple, number: jax.Array) -> tuple[tuple, None]:
            state, is_finite, early = carry
            population = optimizer.ask(state)
            fitness = jax.vmap(fitness_of)(population["x"])
            key = jax.random.fold_in(jax.random.key(1), number)
            after = optimizer.tell(state, _with_failures(key, fitness, rate, number))
            early = jnp.where(number == EARLY, fitness_of(optimizer.solution(after)["x"]), early)
            return (
                after,
                is_finite & _all_finite((population, optimizer.solution(after), checked(after))),
                early,
            ), None

        def checked(state: PyTreeDict) -> Any:
            return () if isinstance(optimizer, EvosaxStrategy) else state  # evosax begins with a cost of infinity

        start = optimizer.init(START, jax.random.key(0))
        end, _ = jax.lax.scan(generation, (start, jnp.bool_(True), jnp.zeros(())), jnp.arange(num_generations))
        return end[1], end[2], fitness_of(optimizer.solution(end[0])["x"])

    problems, rates = (jnp.array(values) for values in zip(*LANES, strict=True))
    return jax.device_get(jax.jit(jax.vmap(lane))(problems, rates))


def _check(optimizer: EvoOptimizer, num_generations: int, noise: Mapping[str, float]) -> None:
    finite, early, last = _run(optimizer, num_generations)
    for lane, (number, rate) in enumerate(LANES):
        name = list(PROBLEMS)[number]
        assert finite[lane], (name, rate)
        assert last[lane] >= early[lane] - noise.get(name, 0.0), (name, rate, early[lane], last[lane])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("pop_size", [4, 64])
def test_ten_thousand_generations(name: str, pop_size: int) -> None:
    _check(OPTIMIZERS[name](pop_size=pop_size), 10_000 if pop_size == 4 else 2_000, NOISE.get(name, {}))


@pytest.mark.parametrize("name", ["cmaes", "sep_cmaes"])
def test_a_great_population_whose_covariance_is_learned_at_once(name: str) -> None:
    _check(OPTIMIZERS[name](pop_size=1000), 500, WIDE)


@pytest.mark.parametrize("strategy", ["CMA_ES", "SNES", "PSO"])
def test_strategies_of_evosax(strategy: str) -> None:
    _check(EvosaxStrategy(pop_size=8, strategy=strategy, initial_std=0.3), 1_000, WIDE)


@pytest.mark.parametrize("name", ["cmaes", "sep_cmaes"])
def test_a_solved_problem_stays_solved(name: str) -> None:
    """Eight dimensions and 64 individuals: the optimum is found exactly, and every later generation is flat."""
    optimizer = OPTIMIZERS[name](pop_size=64)

    @jax.jit
    def search(key: jax.Array) -> tuple[PyTreeDict, jax.Array]:
        def generation(state: PyTreeDict, _: None) -> tuple[PyTreeDict, jax.Array]:
            after = optimizer.tell(state, -jnp.square(optimizer.ask(state)["x"]).sum(axis=1))
            return after, -jnp.square(after.mean["x"]).sum()

        return jax.lax.scan(generation, optimizer.init({"x": jnp.ones(8)}, key), length=3_000)

    state, fitness = search(jax.random.key(0))
    solved = int(np.argmax(np.asarray(fitness) == 0.0))
    assert 0 < solved < 300
    assert (np.asarray(fitness)[solved:] == 0.0).all()
    assert MIN_STD <= float(state.sigma) <= MAX_STD


@pytest.mark.parametrize("name", ["cmaes", "sep_cmaes", "sepcem", "vanilla_es"])
def test_flat_fitness_holds_the_distribution_and_draws_again(name: str) -> None:
    optimizer = OPTIMIZERS[name](pop_size=8, num_elites=4)
    state = optimizer.init(START, jax.random.key(0))
    state = optimizer.tell(state, optimizer.ask(state)["x"].sum(axis=1))
    after = optimizer.tell(state, jnp.full(8, -200.0))
    for entry in set(state) - {"key", "generation"}:
        jax.tree.map(np.testing.assert_array_equal, after[entry], state[entry])
    assert (optimizer.ask(after)["x"] != optimizer.ask(state)["x"]).any()


def test_the_scale_of_the_covariance_moves_into_sigma_without_rounding() -> None:
    """The same distribution, written with another sigma, has the same samples and successors to the last bit."""
    for name in ("cmaes", "sep_cmaes"):
        optimizer = OPTIMIZERS[name](pop_size=8)
        state = optimizer.init(START, jax.random.key(0))
        for _ in range(3):
            state = optimizer.tell(state, -jnp.square(optimizer.ask(state)["x"]).sum(axis=1))
        other = optimizer.rescaled(state, jnp.int32(-20)).replace(
            sigma=state.sigma * 2.0**20, covariance_path=state.covariance_path * 2.0**-20
        )
        np.testing.assert_array_equal(optimizer.ask(other)["x"], optimizer.ask(state)["x"])
        fitness = -jnp.square(optimizer.ask(state)["x"]).sum(axis=1)
        one, same = optimizer.tell(state, fitness), optimizer.tell(other, fitness)
        np.testing.assert_array_equal(optimizer.ask(same)["x"], optimizer.ask(one)["x"])
        assert 2.0**-9 < float(optimizer.spread(same)) < 2.0**9  # and it was brought back


@pytest.mark.parametrize("name", MULTI_OBJECTIVE_OPTIMIZERS)
@pytest.mark.parametrize("pop_size", [4, 64])
def test_several_objectives_with_failures(name: str, pop_size: int) -> None:
    optimizer = MULTI_OBJECTIVE_OPTIMIZERS[name](pop_size=pop_size)

    @jax.jit
    def search() -> tuple[jax.Array, PyTreeDict]:
        def generation(carry: tuple, number: jax.Array) -> tuple[tuple, None]:
            state, is_finite = carry
            x = optimizer.ask(state)["x"]
            objectives = jnp.stack([-jnp.square(x).sum(axis=1), -jnp.square(x - 1.0).sum(axis=1)], axis=1)
            key = jax.random.fold_in(jax.random.key(1), number)
            state = optimizer.tell(state, _with_failures(key, objectives, jnp.float32(0.25), number))
            return (state, is_finite & _all_finite((x, state.parents))), None

        start = (optimizer.init(START, jax.random.key(0)), jnp.bool_(True))
        (state, is_finite), _ = jax.lax.scan(generation, start, jnp.arange(1_000))
        return is_finite, state

    is_finite, state = search()
    assert is_finite
    known = np.asarray(state.objectives)[np.isfinite(state.objectives).all(axis=1)]
    assert len(known)
    # Halfway between both tops, at a distance of 1 / sqrt(2), both objectives are -0.5. Of four individuals two are at
    # the tops, and selection does not decide where the others are between them: spread evenly, the better has -8 / 9.
    # NSGA-II with four had -0.60 to -1.14 over eight runs, with 64 -0.50 to -0.52.
    assert known.min(axis=1).max() > -1.0
    assert not (np.asarray(state.objectives) == np.inf).any()


def test_elites_whose_evaluation_fails_are_kept() -> None:
    optimizer = OPTIMIZERS["ga"](pop_size=4)
    state = optimizer.init(START, jax.random.key(0))
    state = optimizer.tell(state, jnp.array([1.0, 5.0, 2.0, 3.0]))
    best = optimizer.solution(state)["x"]
    for failure in FAILURES:
        after = optimizer.tell(state, jnp.array([failure, 4.0, 2.0, 3.0]))
        np.testing.assert_array_equal(optimizer.solution(after)["x"], best)
    after = optimizer.tell(state, jnp.array([1.0, 4.0, 2.0, 3.0]))  # evaluated again, it is worse
    assert (optimizer.solution(after)["x"] != best).any()


def test_advance_and_finite_or() -> None:
    old = PyTreeDict(x=jnp.array([1.0, jnp.inf]), count=jnp.int32(0))
    new = PyTreeDict(x=jnp.array([2.0, jnp.inf]), count=jnp.int32(1))
    np.testing.assert_array_equal(advance(old, new).x, new.x)  # what was infinite before may be so
    held = advance(old, new, holds=True)
    assert (float(held.x[0]), int(held.count)) == (1.0, 1)
    assert float(advance(old, new.replace(x=jnp.array([jnp.nan, 0.0]))).x[0]) == 1.0
    np.testing.assert_array_equal(
        finite_or({"x": jnp.array([jnp.inf, 3.0])}, {"x": jnp.array([1.0, 2.0])})["x"], [1, 3]
    )
