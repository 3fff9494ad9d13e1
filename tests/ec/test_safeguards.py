"""Long runs of every optimizer: numbers stay finite, and the best solution is kept."""

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
MIXED = len(FAILURES)  # one of them at random
LANES = [(problem, rate, MIXED) for problem in range(len(PROBLEMS)) for rate in (0.0, 0.25)]
SHARES = (0.5, 0.75, 0.9, 1.0)
EARLY = 100
# Around an optimum, strategies with a lower bound of spread or step size keep moving. They may lose twice the largest
# loss that was measured with both population sizes: 767 (ars) and 721 (vanilla_es) on the ellipsoid, which is -160,000
# at the start, and 14.7 (sepcem). The other optimizers lost nothing, and must not.
FIXED_STEPS = {"sphere": 5e-3, "ellipsoid": 1.6e3, "great": 1.5e36}
FIXED_SPREAD = {"sphere": 1e-4, "ellipsoid": 30.0, "great": 2e34}
NOISE = {"ars": FIXED_STEPS, "vanilla_es": FIXED_STEPS, "sepcem": FIXED_SPREAD}
# Bounds for strategies of evosax, and for two dimensions with a thousand individuals, which were not measured
# separately.
WIDE = {"sphere": 0.02, "ellipsoid": 2e3, "great": 3e36}


def _with_failures(
    key: jax.Array, fitness: jax.Array, rate: jax.Array, generation: jax.Array, kind: jax.Array | int = MIXED
) -> jax.Array:
    """Replace some fitness values by failures; every 50th generation fails completely if ``rate`` is positive."""
    chance_key, kind_key = jax.random.split(key)
    rate = jnp.where((rate > 0) & (generation % 50 == 49), 1.0, rate)
    kinds = FAILURES[jnp.where(kind == MIXED, jax.random.randint(kind_key, fitness.shape, 0, 3), kind)]
    return jnp.where(jax.random.uniform(chance_key, fitness.shape) < rate, kinds, fitness)


def _all_finite(tree: Any) -> jax.Array:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floats]).all()


def _run(optimizer: EvoOptimizer, num_generations: int, lanes: list[tuple]) -> tuple[np.ndarray, ...]:
    """Return per lane if state and individuals stayed finite, the early and last fitness of the solution, and the
    largest coordinate of an individual.
    """

    def lane(problem: jax.Array, rate: jax.Array, kind: jax.Array) -> tuple[jax.Array, ...]:
        def fitness_of(x: jax.Array) -> jax.Array:
            return jax.lax.switch(problem, list(PROBLEMS.values()), x)

        def generation(carry: tuple, number: jax.Array) -> tuple[tuple, None]:
            state, is_finite, early, greatest = carry
            population = optimizer.ask(state)
            fitness = jax.vmap(fitness_of)(population["x"])
            key = jax.random.fold_in(jax.random.key(1), number)
            after = optimizer.tell(state, optimizer.tellable(_with_failures(key, fitness, rate, number, kind)))
            early = jnp.where(number == EARLY, fitness_of(optimizer.solution(after)["x"]), early)
            return (
                after,
                is_finite & _all_finite((population, optimizer.solution(after), checked(after))),
                early,
                jnp.maximum(greatest, jnp.abs(population["x"]).max()),
            ), None

        def checked(state: PyTreeDict) -> Any:
            return () if isinstance(optimizer, EvosaxStrategy) else state  # evosax starts with an infinite cost

        start = optimizer.init(START, jax.random.key(0))
        carry = (start, jnp.bool_(True), jnp.zeros(()), jnp.zeros(()))
        (end, is_finite, early, greatest), _ = jax.lax.scan(generation, carry, jnp.arange(num_generations))
        return is_finite, early, fitness_of(optimizer.solution(end)["x"]), greatest

    return jax.device_get(jax.jit(jax.vmap(lane))(*(jnp.array(values) for values in zip(*lanes, strict=True))))


def _check(optimizer: EvoOptimizer, num_generations: int, noise: Mapping[str, float]) -> None:
    finite, early, last, _ = _run(optimizer, num_generations, LANES)
    for lane, (number, rate, _) in enumerate(LANES):
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_share_and_kind_of_failures(name: str) -> None:
    """No search diverges, and NaN and both infinities have the same effect."""
    problems = [number for number, problem in enumerate(PROBLEMS) if problem != "great"]
    lanes = [(problem, share, kind) for problem in problems for share in SHARES for kind in range(len(FAILURES))]
    results = _run(OPTIMIZERS[name](pop_size=8), 400, lanes)
    shape = (len(problems), len(SHARES), len(FAILURES))
    finite, _, last, greatest = (x.reshape(shape) for x in results)
    assert finite.all()
    for x in (last, greatest):
        np.testing.assert_array_equal(x, np.broadcast_to(x[..., :1], shape))
    for problem, of_problem in zip(PROBLEMS, last[..., 0], strict=False):
        first = float(PROBLEMS[problem](START["x"]))
        assert of_problem[-1] == first, problem  # nothing is known
        assert (of_problem >= first).all(), (problem, of_problem)
    assert (last[2, 0] > -0.1).all(), last[2]  # half of the individuals show the way down the sphere from -0.65
    assert greatest[0].max() < 10.0  # on flat fitness


@pytest.mark.parametrize("strategy", ["CMA_ES", "SNES", "PSO"])
def test_strategies_of_evosax(strategy: str) -> None:
    _check(EvosaxStrategy(pop_size=8, strategy=strategy, initial_std=0.3), 1_000, WIDE)


@pytest.mark.parametrize("name", ["cmaes", "sep_cmaes"])
def test_a_solved_problem_stays_solved(name: str) -> None:
    """The optimum is found exactly in eight dimensions, and all later generations, with flat fitness, keep it."""
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
    """Rescaling sigma against the covariance does not change samples and successors by a bit."""
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
        assert 2.0**-9 < float(optimizer.spread(same)) < 2.0**9  # rescaled again


def _two_tops(x: jax.Array) -> jax.Array:
    return jnp.stack([-jnp.square(x).sum(axis=1), -jnp.square(x - 1.0).sum(axis=1)], axis=1)


TWO_OBJECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "two tops": _two_tops,
    "all equal": lambda x: jnp.full((x.shape[0], 2), -3.0),
    "one constant": lambda x: _two_tops(x).at[:, 0].set(7.0),
    "duplicates": lambda x: jnp.round(_two_tops(x)),
    "great": lambda x: 3e38 * jnp.tanh(_two_tops(x)),
}


@pytest.mark.parametrize("name", MULTI_OBJECTIVE_OPTIMIZERS)
@pytest.mark.parametrize("pop_size", [4, 64])
def test_several_objectives_with_failures(name: str, pop_size: int) -> None:
    optimizer = MULTI_OBJECTIVE_OPTIMIZERS[name](pop_size=pop_size)
    lanes = [(problem, share) for problem in range(len(TWO_OBJECTIVES)) for share in (0.25, 0.9)]

    def search(problem: jax.Array, share: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        def generation(carry: tuple, number: jax.Array) -> tuple[tuple, None]:
            state, is_finite = carry
            x = optimizer.ask(state)["x"]
            objectives = jax.lax.switch(problem, list(TWO_OBJECTIVES.values()), x)
            key = jax.random.fold_in(jax.random.key(1), number)
            state = optimizer.tell(state, _with_failures(key, objectives, share, number))
            checked = (x, state.parents, state.get("vectors", ()))
            return (state, is_finite & _all_finite(checked)), None

        start = (optimizer.init(START, jax.random.key(0)), jnp.bool_(True))
        (state, is_finite), _ = jax.lax.scan(generation, start, jnp.arange(1_000 if pop_size == 4 else 40))
        return is_finite, state

    finite, states = jax.jit(jax.vmap(search))(*(jnp.array(values) for values in zip(*lanes, strict=True)))
    assert finite.all()
    for lane, objectives in enumerate(np.asarray(states.objectives)):
        known = objectives[np.isfinite(objectives).all(axis=1)]
        assert len(known), lanes[lane]
        assert (np.isfinite(objectives).all(axis=1) | (objectives == -np.inf).all(axis=1)).all(), lanes[lane]
        if "vectors" in states:
            np.testing.assert_allclose(np.linalg.norm(states.vectors[lane], axis=1), 1.0, rtol=1e-5)
    # Halfway between both optima, at a distance of 1 / sqrt(2), both objectives are -0.5. Of four individuals two are
    # at the optima, and selection does not determine where the others are: spread evenly, the better has -8 / 9.
    # NSGA-II with four had -0.60 to -1.14 over eight runs, with 64 -0.50 to -0.52.
    known = np.asarray(states.objectives[0])
    assert known[np.isfinite(known).all(axis=1)].min(axis=1).max() > -1.0


def test_elites_whose_evaluation_fails_are_kept() -> None:
    optimizer = OPTIMIZERS["ga"](pop_size=4)
    state = optimizer.init(START, jax.random.key(0))
    state = optimizer.tell(state, jnp.array([1.0, 5.0, 2.0, 3.0]))
    best = optimizer.solution(state)["x"]
    for failure in FAILURES:
        after = optimizer.tell(state, jnp.array([failure, 4.0, 2.0, 3.0]))
        np.testing.assert_array_equal(optimizer.solution(after)["x"], best)
    after = optimizer.tell(state, jnp.array([1.0, 4.0, 2.0, 3.0]))  # worse in the second evaluation
    assert (optimizer.solution(after)["x"] != best).any()


def test_advance_and_finite_or() -> None:
    old = PyTreeDict(x=jnp.array([1.0, jnp.inf]), count=jnp.int32(0))
    new = PyTreeDict(x=jnp.array([2.0, jnp.inf]), count=jnp.int32(1))
    np.testing.assert_array_equal(advance(old, new).x, new.x)  # infinite values may stay infinite
    held = advance(old, new, holds=True)
    assert (float(held.x[0]), int(held.count)) == (1.0, 1)
    assert float(advance(old, new.replace(x=jnp.array([jnp.nan, 0.0]))).x[0]) == 1.0
    np.testing.assert_array_equal(
        finite_or({"x": jnp.array([jnp.inf, 3.0])}, {"x": jnp.array([1.0, 2.0])})["x"], [1, 3]
    )
