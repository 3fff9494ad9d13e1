"""Common properties of breeding optimizers: initial population, partial requests, and key streams."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.ec.optimizers.genetic import GeneticAlgorithm
from evorl.ec.optimizers.nsga2 import NSGA2
from evorl.types import PyTreeDict
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
