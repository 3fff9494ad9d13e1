"""RVEA: survivors, and convergence to known fronts, compared with NSGA-II and random search."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.operators.reference_vectors import simplex_lattice, unit_vectors
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ec.optimizers import NSGA2, RVEA, MultiObjectiveOptimizer
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_identical
from tests.support.whole_programs import Whole, whole

POP_SIZE, GENERATIONS, DIMENSIONS = 60, 120, 8
BREEDING: dict[str, Any] = {
    "pop_size": POP_SIZE,
    "initial_std": 0.3,
    "crossover": Crossover(kind="simulated_binary", probability=1.0),
    "mutation": Mutation(kind="polynomial", share=1.0 / DIMENSIONS, scale=0.5),
}


def zdt1(x: jax.Array) -> jax.Array:
    """Return two objectives (Zitzler et al. 2000) with front ``f2 = 1 - sqrt(f1)``, negated for maximization."""
    x = jnp.clip(x, 0.0, 1.0)
    g = 1.0 + 9.0 * x[:, 1:].mean(axis=1)
    return -jnp.stack([x[:, 0], g * (1.0 - jnp.sqrt(x[:, 0] / g))], axis=1)


def dtlz2(x: jax.Array) -> jax.Array:
    """Return three objectives (Deb et al. 2005) with the unit sphere as front, negated for maximization."""
    x = jnp.clip(x, 0.0, 1.0)
    g = jnp.square(x[:, 2:] - 0.5).sum(axis=1)
    a, b = 0.5 * jnp.pi * x[:, 0], 0.5 * jnp.pi * x[:, 1]
    radius = 1.0 + g
    return -jnp.stack([radius * jnp.cos(a) * jnp.cos(b), radius * jnp.cos(a) * jnp.sin(b), radius * jnp.sin(a)], axis=1)


PROBLEMS = {"zdt1": (zdt1, 2), "dtlz2": (dtlz2, 3)}


def known_front(problem: str) -> np.ndarray:
    """Return points spread over the front, ``[K, M]``, for minimization."""
    if problem == "zdt1":
        f1 = np.linspace(0.0, 1.0, 101)
        return np.stack([f1, 1.0 - np.sqrt(f1)], axis=1)
    return np.asarray(whole(unit_vectors)(simplex_lattice(3, 9)))


def distance_to_front(objectives: np.ndarray, problem: str) -> float:
    """Return the inverted generational distance: the mean distance of front points to the nearest individual."""
    costs = -np.asarray(objectives)
    costs = costs[np.isfinite(costs).all(axis=1)]
    return float(np.linalg.norm(known_front(problem)[:, None] - costs, axis=-1).min(axis=1).mean())


def evolve(optimizer: MultiObjectiveOptimizer, problem: str) -> Any:
    """Return the state after all generations."""
    objectives_of, _ = PROBLEMS[problem]

    @jax.jit
    def run(key: jax.Array) -> Any:
        def generation(state: Any, _: None) -> tuple[Any, None]:
            return optimizer.tell(state, objectives_of(optimizer.ask(state))), None

        start = optimizer.init(jnp.full(DIMENSIONS, 0.5), key)
        return jax.lax.scan(generation, start, length=GENERATIONS)[0]

    return run(jax.random.key(0))


@functools.cache
def evolved(problem: str) -> Any:
    return evolve(RVEA(num_objectives=PROBLEMS[problem][1], num_generations=GENERATIONS, **BREEDING), problem)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_reaches_a_known_front(problem: str) -> None:
    objectives_of, num = PROBLEMS[problem]
    points = np.random.default_rng(0).random((POP_SIZE * GENERATIONS, DIMENSIONS)).astype(np.float32)
    random = whole(objectives_of)(points)
    rvea = distance_to_front(evolved(problem).objectives, problem)
    nsga2 = distance_to_front(evolve(NSGA2(num_objectives=num, **BREEDING), problem).objectives, problem)
    assert rvea < 0.3 * distance_to_front(np.asarray(random), problem)
    # NSGA-II is better with two objectives; RVEA spreads better with three.
    assert rvea < (1.5 * nsga2 + 0.01 if num == 2 else nsga2)


def test_individuals_stand_along_the_vectors() -> None:
    state = evolved("dtlz2")
    is_filled = np.isfinite(np.asarray(state.objectives)).all(axis=1)
    assert is_filled.mean() > 0.8
    directions = whole(unit_vectors)(-np.asarray(state.objectives)[is_filled])
    cosines = (np.asarray(directions) * np.asarray(state.vectors)[is_filled]).sum(axis=1)
    assert np.median(cosines) > 0.995
    assert state.num_adaptations == 10  # at the start and after each tenth except for the last
    assert state.progress == 1.0


def test_the_same_key_gives_the_same_search() -> None:
    optimizer = RVEA(**BREEDING)
    tell = jax.jit(lambda state: optimizer.tell(state, zdt1(optimizer.ask(state))))
    start, init = np.zeros(3, np.float32), Whole(optimizer).init
    one, two = (tell(tell(init(start, jax.random.key(seed)))) for seed in (1, 1))
    assert_identical(one, two)
    other = tell(init(start, jax.random.key(2)))
    assert (np.asarray(other.population) != np.asarray(one.population)).any()


def test_parents_of_a_vector_stay_until_a_better_one_comes() -> None:
    optimizer = Whole(RVEA(pop_size=3, divisions=2, adaptation_frequency=1.0))
    state = optimizer.init(np.zeros(4, np.float32), jax.random.key(0))
    first = optimizer.tell(state, np.array([[0.0, -4.0], [-2.0, -2.0], [-4.0, 0.0]], np.float32))
    np.testing.assert_array_equal(first.objectives, [[0.0, -4.0], [-2.0, -2.0], [-4.0, 0.0]])
    np.testing.assert_array_equal(first.parents, state.population)
    later = optimizer.tell(first, np.array([[np.nan, 9.0], [-1.0, -1.0], [-9.0, -1.0]], np.float32))
    np.testing.assert_array_equal(later.objectives, [[0.0, -4.0], [-1.0, -1.0], [-4.0, 0.0]])
    parents = np.asarray(later.parents)
    np.testing.assert_array_equal(parents[1], np.asarray(first.population)[1])
    np.testing.assert_array_equal(parents[[0, 2]], np.asarray(first.parents)[[0, 2]])


def test_individuals_without_objectives_do_not_survive() -> None:
    optimizer = Whole(RVEA(pop_size=4))
    state = optimizer.init(np.full(3, 2.0, np.float32), jax.random.key(0))
    np.testing.assert_array_equal(optimizer.solution(state), 2.0)
    unknown = np.full((4, 2), np.nan, np.float32)
    nobody = optimizer.tell(state, unknown)
    np.testing.assert_array_equal(nobody.parents, 2.0)
    assert np.isfinite(nobody.population).all()
    one = optimizer.tell(state, np.where(np.arange(4)[:, None] == 2, np.float32(1.0), unknown))
    assert np.isfinite(np.asarray(one.objectives)).all(axis=1).sum() == 1
    np.testing.assert_array_equal(optimizer.solution(one), np.asarray(state.population)[2])


def test_progress_is_set_or_counted() -> None:
    guided, counted = Whole(RVEA(pop_size=4)), Whole(RVEA(pop_size=4, num_generations=4))
    objectives = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    start = np.zeros(3, np.float32)
    state = guided.at_progress(guided.init(start, jax.random.key(0)), np.float32(0.6))
    assert (float(state.progress), float(guided.tell(state, objectives).progress)) == (np.float32(0.6), np.float32(0.6))
    state = counted.at_progress(counted.init(start, jax.random.key(0)), np.float32(0.6))
    assert (float(state.progress), float(counted.tell(state, objectives).progress)) == (0.0, 0.25)


@pytest.mark.parametrize(("num", "pop_size", "expected"), [(2, 60, 60), (3, 60, 55), (3, 91, 91), (8, 8, 8)])
def test_there_are_as_many_vectors_as_fit_the_population(num: int, pop_size: int, expected: int) -> None:
    assert RVEA(pop_size=pop_size, num_objectives=num).num_parents == expected
    assert RVEA(pop_size=pop_size, num_objectives=num, divisions=2).num_parents == num * (num + 1) // 2


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"num_objectives": 1}, ("num_objectives=1", "at least 2")),
        ({"divisions": 0}, ("divisions=0", "at least 1")),
        (
            {"pop_size": 4, "num_objectives": 5},
            ("pop_size=4", "5 objectives"),
        ),
        ({"num_generations": 0}, ("num_generations=0", "at least 1")),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        RVEA(**{"pop_size": 8, **fields})
