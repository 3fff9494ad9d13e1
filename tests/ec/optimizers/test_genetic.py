"""The genetic algorithm: bit-identical elites, children of parents, and the sphere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec import EvoOptimizer
from evorl.ec.operators.variation import Crossover, Mutation
from evorl.ec.optimizers.genetic import GeneticAlgorithm
from tests.conformance.evo_optimizer import EvoOptimizerContract
from tests.support.errors import raises_naming
from tests.support.whole_programs import Whole


class TestContract(EvoOptimizerContract):
    takes_others = True

    @staticmethod
    def make(pop_size: int) -> EvoOptimizer:
        return GeneticAlgorithm(pop_size=pop_size, num_elites=2)


def test_elites_are_kept_to_the_last_bit_and_first() -> None:
    optimizer = Whole(GeneticAlgorithm(pop_size=9, num_elites=3, mutation=Mutation(kind="erl", share=1.0)))
    state = optimizer.init({"x": np.zeros((4, 2), np.float32), "y": np.zeros(3, np.float32)}, jax.random.key(0))
    fitness = np.array([0.0, 5.0, np.nan, 7.0, 1.0, 2.0, 5.0, -1.0, -np.inf], np.float32)
    later = optimizer.tell(state, fitness)
    before, after = jax.tree.map(np.asarray, (state.population, later.population))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:3], b[[3, 1, 6]]), after, before)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[3]), optimizer.solution(later), before)
    assert not np.isin(after["y"][3:], before["y"]).all()


def test_children_are_made_of_the_winners() -> None:
    """Without mutation, all entries come from two parents; with large tournaments, only from the best one."""
    exchange = {"crossover": Crossover(kind="uniform", probability=1.0), "mutation": Mutation(probability=0.0)}
    optimizer = GeneticAlgorithm(pop_size=6, tournament_size=2, **exchange)
    fitness = np.arange(6, dtype=np.float32)
    state = Whole(optimizer).init(np.zeros(50, np.float32), jax.random.key(0))
    children = np.asarray(Whole(optimizer).tell(state, fitness).population)[1:]
    before = np.asarray(state.population)
    sources = (children[:, None, :] == before[None]).any(axis=2)
    assert (children[:, None, :] == before[None]).any(axis=1).all()
    assert sources.sum(axis=1).max() == 2
    greedy = Whole(optimizer.replace(tournament_size=200)).tell(state, fitness).population
    np.testing.assert_array_equal(greedy, np.broadcast_to(before[5], (6, 50)))


@pytest.mark.parametrize(
    "settings",
    [
        {"crossover": Crossover(kind="uniform"), "mutation": Mutation(share=0.1, scale=0.05)},
        {"crossover": Crossover(kind="simulated_binary", share=1.0), "mutation": Mutation(share=0.05, scale=0.05)},
    ],
    ids=lambda settings: settings["crossover"].kind,
)
def test_sphere_is_solved_to_a_stated_bound(settings: dict) -> None:
    """The sphere in 20 dimensions is solved from a distance of 4.5 in 400 generations; the best never gets worse."""
    optimizer = GeneticAlgorithm(pop_size=64, num_elites=4, tournament_size=4, initial_std=0.5, **settings)

    @jax.jit
    def search(key: jax.Array) -> jax.Array:
        def generation(state: dict, _: None) -> tuple[dict, jax.Array]:
            fitness = -jnp.square(optimizer.ask(state)).sum(axis=-1)
            return optimizer.tell(state, fitness), fitness.max()

        return jax.lax.scan(generation, optimizer.init(jnp.ones(20), key), length=400)[1]

    best = np.asarray(search(jax.random.key(0)))
    assert (np.diff(best) >= 0).all()
    assert best[0] < -5.0
    assert best[-1] > -0.05


@pytest.mark.parametrize("num", [0, 8])
def test_a_number_of_elites_that_cannot_be_is_refused(num: int) -> None:
    with raises_naming(ValueError, f"num_elites={num}", "at least 1 and below pop_size=8"):
        GeneticAlgorithm(pop_size=8, num_elites=num)
