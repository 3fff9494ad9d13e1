"""What all optimizers keep that breed: the first population, asking for parts of it, streams of keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.ec.optimizers.genetic import GeneticAlgorithm
from evorl.ec.optimizers.nsga2 import NSGA2
from evorl.types import PyTreeDict
from tests.key_record import KeyRecord

LAYER = jnp.arange(6.0).reshape(2, 3)
SOLUTION = PyTreeDict(kernel=LAYER, other=LAYER + 0.0, scale=jnp.array(-1.0))
OPTIMIZERS = [GeneticAlgorithm(pop_size=7, num_elites=2, tournament_size=3), NSGA2(pop_size=7)]
both = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)


def fitness_of(optimizer: BreedingOptimizer, seed: int = 0) -> jax.Array:
    shape = (7, 2) if isinstance(optimizer, NSGA2) else (7,)
    return jax.random.normal(jax.random.key(seed), shape)


@both
def test_first_population_is_noise_around_the_solution(optimizer: BreedingOptimizer) -> None:
    optimizer = optimizer.replace(pop_size=5000, init_std=0.5)
    state = optimizer.init(SOLUTION, jax.random.key(0))
    population = optimizer.ask(state)
    jax.tree.map(lambda x, given: np.testing.assert_array_equal(x[0], given), population, SOLUTION)
    jax.tree.map(np.testing.assert_array_equal, optimizer.solution(state), SOLUTION)
    for x, given in zip(*map(jax.tree.leaves, (population, SOLUTION)), strict=True):
        noise = np.asarray(x - given)[1:]
        assert np.abs(noise.std(axis=0) / 0.5 - 1.0).max() < 5 / np.sqrt(2 * 5000)
        assert np.abs(noise.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(5000)
    assert (population["kernel"] != population["other"])[1:].mean() > 0.99


@both
def test_any_part_of_the_generation_can_be_asked_for(optimizer: BreedingOptimizer) -> None:
    state = optimizer.init(SOLUTION, jax.random.key(0))
    whole = optimizer.ask(state)
    ask = jax.jit(optimizer.ask, static_argnums=2)
    for first in (0, 3, 4):
        part = ask(state, first, 3)
        jax.tree.map(lambda a, b, i=first: np.testing.assert_array_equal(a, b[i : i + 3]), part, whole)
    beyond = ask(state, 6, 3)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[jnp.array([6, 6, 6])]), beyond, whole)


@both
def test_a_generation_is_the_same_compiled_and_mapped(optimizer: BreedingOptimizer) -> None:
    def run(key: jax.Array) -> dict:
        state = optimizer.init(SOLUTION, key)
        for seed in range(2):
            state = optimizer.tell(state, fitness_of(optimizer, seed))
        return {"population": optimizer.ask(state), "solution": optimizer.solution(state), "at": state.generation}

    keys = jax.random.split(jax.random.key(0), 2)
    mapped, single = jax.jit(jax.vmap(run))(keys), run(keys[1])
    assert int(single["at"]) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-5, atol=1e-6), mapped, single)
    assert (mapped["population"]["kernel"][0] != mapped["population"]["kernel"][1]).any()


@both
def test_state_keeps_its_structure(optimizer: BreedingOptimizer) -> None:
    state = optimizer.init(SOLUTION, jax.random.key(0))
    later = optimizer.tell(state, fitness_of(optimizer))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), later)
    assert not any((later.key == state.key).ravel())


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
    state = optimizer.init(SOLUTION, jax.random.key(0))
    with pytest.raises(AssertionError, match="shape"):
        optimizer.tell(state, jnp.zeros((7, 3)))
