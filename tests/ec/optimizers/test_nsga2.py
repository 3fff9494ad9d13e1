"""NSGA-II: survivors, and convergence to a known front."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ec import EvoOptimizer
from evorl.ec.operators.pareto import hypervolume_2d, non_dominated_ranks, nsga2_order
from evorl.ec.operators.variation import Mutation
from evorl.ec.optimizers.nsga2 import NSGA2
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.whole_programs import Whole, whole

DIMENSIONS = 10


class TestContract(EvoOptimizerContract):
    num_objectives = 2
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return NSGA2(pop_size=pop_size)


def objectives_of(x: jax.Array) -> jax.Array:
    """Return closeness to 0 and to 1: the Pareto set is the points with equal entries from 0 to 1."""
    return jnp.stack([-jnp.square(x).mean(axis=-1), -jnp.square(x - 1.0).mean(axis=-1)], axis=-1)


def test_first_generation_becomes_the_parents_best_first() -> None:
    optimizer = Whole(NSGA2(pop_size=8, num_objectives=3))
    state = optimizer.init(np.zeros(4, np.float32), jax.random.key(0))
    objectives = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    later = optimizer.tell(state, objectives)
    order = np.asarray(whole(nsga2_order)(objectives))
    np.testing.assert_array_equal(later.objectives, objectives[order])
    np.testing.assert_array_equal(later.parents, np.asarray(state.population)[order])
    assert (np.asarray(later.population) != np.asarray(state.population)).any()


def test_survivors_are_the_best_of_parents_and_children() -> None:
    optimizer, rng = Whole(NSGA2(pop_size=6)), np.random.default_rng(1)
    state = optimizer.init(np.zeros(4, np.float32), jax.random.key(0))
    state = optimizer.tell(state, rng.normal(size=(6, 2)).astype(np.float32))
    objectives = rng.normal(size=(6, 2)).astype(np.float32)
    objectives[2:4] = [[np.nan], [10.0]]
    later = optimizer.tell(state, objectives)
    everybody = np.concatenate([state.population, state.parents])
    all_objectives = np.concatenate([objectives, state.objectives])
    np.testing.assert_array_equal(np.asarray(later.objectives)[0], 10.0)
    assert not np.isnan(later.objectives).any()
    for parent, values in zip(np.asarray(later.parents), np.asarray(later.objectives), strict=True):
        (place,) = np.flatnonzero((everybody == parent).all(axis=1))
        np.testing.assert_array_equal(all_objectives[place], values)
    ranks = np.asarray(whole(non_dominated_ranks)(all_objectives))
    kept = [np.flatnonzero((all_objectives == row).all(axis=1))[0] for row in np.asarray(later.objectives)]
    np.testing.assert_array_equal(np.sort(ranks[kept]), np.sort(ranks)[:6])


def test_individuals_without_objectives_do_not_survive() -> None:
    """Individuals with NaN are replaced by the given solution."""
    optimizer = Whole(NSGA2(pop_size=4))
    state = optimizer.init(np.full(3, 2.0, np.float32), jax.random.key(0))
    later = optimizer.tell(state, np.array([[np.nan, 9.0], [1.0, 0.0], [0.0, 1.0], [np.nan, np.nan]], np.float32))
    np.testing.assert_array_equal(np.sort(np.asarray(later.objectives)[:2, 0]), [0.0, 1.0])
    np.testing.assert_array_equal(np.asarray(later.parents)[2:], 2.0)


def test_hypervolume_grows_to_that_of_the_known_front() -> None:
    optimizer = NSGA2(pop_size=60, initial_std=0.5, mutation=Mutation(share=1.0 / DIMENSIONS, scale=0.1))
    reference = jnp.array([-1.0, -1.0])

    @jax.jit
    def search(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def generation(state: dict, _: None) -> tuple[dict, jax.Array]:
            state = optimizer.tell(state, objectives_of(optimizer.ask(state)))
            return state, hypervolume_2d(state.objectives, reference)

        state, areas = jax.lax.scan(generation, optimizer.init(jnp.full(DIMENSIONS, 2.0), key), length=300)
        return state.objectives, areas

    objectives, areas = map(np.asarray, search(jax.random.key(0)))
    t = np.linspace(0.0, 1.0, 10_001)
    exact = np.trapezoid((1.0 - np.square(1.0 - t)) * 2 * t, t)  # of the front (-t^2, -(1 - t)^2)
    assert areas[0] == 0.0
    assert exact * 0.96 < areas[-1] <= exact + 1e-5
    assert (np.asarray(whole(non_dominated_ranks)(objectives)) == 0).mean() > 0.9
    spread = np.sort(objectives[:, 0])
    assert spread[0] < -0.8
    assert spread[-1] > -0.1
