"""Common properties of breeding optimizers: initial population, partial requests, and key streams."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.ec.operators.variation import Mutation
from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.ec.optimizers.genetic import GeneticAlgorithm
from evorl.ec.optimizers.nsga2 import NSGA2
from evorl.ec.optimizers.rvea import RVEA
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming
from tests.support.key_record import KeyRecord
from tests.support.whole_programs import Whole

LAYER = np.arange(6.0, dtype=np.float32).reshape(2, 3)
SOLUTION = PyTreeDict(kernel=LAYER, other=LAYER + 0.0, scale=np.float32(-1.0))
OPTIMIZERS = [GeneticAlgorithm(pop_size=7, num_elites=2, tournament_size=3), NSGA2(pop_size=7)]
both = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)


def fitness_of(optimizer: BreedingOptimizer, seed: int = 0) -> jax.Array:
    shape = (7, 2) if isinstance(optimizer, NSGA2) else (7,)
    return jax.random.normal(jax.random.key(seed), shape)


@both
def test_first_population_is_noise_around_the_solution(optimizer: BreedingOptimizer) -> None:
    optimizer = Whole(optimizer.replace(pop_size=5000, initial_std=0.5))
    state = optimizer.init(SOLUTION, jax.random.key(0))
    population = jax.tree.map(np.asarray, optimizer.ask(state))
    jax.tree.map(lambda x, given: np.testing.assert_array_equal(x[0], given), population, SOLUTION)
    jax.tree.map(np.testing.assert_array_equal, optimizer.solution(state), SOLUTION)
    for x, given in zip(*map(jax.tree.leaves, (population, SOLUTION)), strict=True):
        noise = np.asarray(x - given)[1:]
        assert np.abs(noise.std(axis=0) / 0.5 - 1.0).max() < 5 / np.sqrt(2 * 5000)
        assert np.abs(noise.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(5000)
    assert (population["kernel"] != population["other"])[1:].mean() > 0.99


def unit_norms(population: PyTreeDict) -> np.ndarray:
    """Return the norms of the weights of each unit, ``[..., units]``."""
    return np.linalg.norm(population["kernel"], axis=-2)


@both
def test_projection_applies_to_every_individual_after_mutation(optimizer: BreedingOptimizer) -> None:
    """The weights of each unit have norm 1 in every generation; other parameters are unaffected."""
    pair = [Whole(optimizer), Whole(optimizer.replace(projection="unit_norm"))]
    states = [x.init(SOLUTION, jax.random.key(0)) for x in pair]
    for generation in range(3):
        populations = [x.ask(state) for x, state in zip(pair, states, strict=True)]
        assert np.abs(unit_norms(populations[0]) - 1.0).min() > 1e-3
        np.testing.assert_allclose(unit_norms(populations[1]), 1.0, rtol=1e-5)
        for name in ("other", "scale"):
            np.testing.assert_array_equal(*(population[name] for population in populations))
        fitness = fitness_of(optimizer, generation)
        states = [x.tell(state, fitness) for x, state in zip(pair, states, strict=True)]
        np.testing.assert_allclose(unit_norms(pair[1].solution(states[1])), 1.0, rtol=1e-5)


@both
def test_no_key_is_used_twice(optimizer: BreedingOptimizer) -> None:
    record = KeyRecord()
    state = record.run(lambda key: optimizer.init(SOLUTION, key), jax.random.key(0))
    state = record.run(optimizer.tell, state, fitness_of(optimizer))
    assert state.generation == 1
    assert len(record.consumed) > 20
    assert not record.misused()


@both
def test_fitness_of_another_shape_is_refused(optimizer: BreedingOptimizer) -> None:
    state = Whole(optimizer).init(SOLUTION, jax.random.key(0))
    with pytest.raises(AssertionError, match="shape"):
        optimizer.tell(state, np.zeros((7, 3), np.float32))


@pytest.mark.parametrize("kind", [GeneticAlgorithm, NSGA2, RVEA])
def test_probabilities_of_large_changes_and_resets_add_up_to_at_most_1(kind: type[BreedingOptimizer]) -> None:
    for shares in ((0.8, 0.2), (0.7, 0.3), (1.0, 0.0), (0.9, 0.1)):
        kind(pop_size=8, mutation=Mutation(kind="erl", super_probability=shares[0], reset_probability=shares[1]))
    kind(pop_size=8, mutation=Mutation(super_probability=0.8, reset_probability=0.8))  # without effect
    with raises_naming(ValueError, "mutation.super_probability=0.8", "mutation.reset_probability=0.3", "at most 1"):
        kind(pop_size=8, mutation=Mutation(kind="erl", super_probability=0.8, reset_probability=0.3))
