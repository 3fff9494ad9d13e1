"""A genetic algorithm (Holland 1975): the best stay, the others are replaced by children of good parents."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import failures_to_minus_inf
from evorl.ec.operators.parent_selection import tournament_selection, truncation_selection
from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.types import Key, Params, PyTreeDict

UNKNOWN = jnp.finfo(jnp.float32).min  # fitness of elites before their evaluation: no finite fitness is worse


class GeneticAlgorithm(BreedingOptimizer):
    """Elites are kept to the last bit; parents win tournaments, children are crossed and mutated.

    Elites are evaluated again in each generation. If that fails, their previous fitness counts.

    Attributes:
        num_elites: how many of the best are kept; they are the first individuals of the next generation, best first.
        tournament_size: how many compete to be a parent.
    """

    num_elites: int = 1
    tournament_size: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.num_elites < self.pop_size:
            raise ValueError(
                f"num_elites={self.num_elites} of a population of {self.pop_size}: keep from 1 to {self.pop_size - 1}."
            )

    @property
    def num_replaceable(self) -> int:
        """The children, which come after the elites."""
        return self.pop_size - self.num_elites

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first population around ``solution``, to be asked for; it has no elites yet."""
        unknown = jnp.full(self.num_elites, UNKNOWN, jnp.float32)
        return super().init(solution, key) | {"elite_fitness": unknown}

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """The elites and the children of the generation with this fitness ``[P]``; what is not finite is the worst."""
        chex.assert_shape(fitness, (self.pop_size,))
        first = fitness[: self.num_elites].astype(jnp.float32)
        known = jnp.where(jnp.isfinite(first), first, state.elite_fitness)
        fitness = jnp.concatenate([known.astype(fitness.dtype), fitness[self.num_elites :]])
        key, breed_key = jax.random.split(state.key)
        elites = truncation_selection(fitness, self.num_elites)

        def select(key: Key, count: int) -> jax.Array:
            return tournament_selection(key, fitness, count, self.tournament_size)

        children = self.breed(breed_key, state.population, select, self.pop_size - self.num_elites)
        population = jax.tree.map(lambda x, new: jnp.concatenate([x[elites], new]), state.population, children)
        return state.replace(
            key=key,
            population=population,
            elite_fitness=jnp.maximum(failures_to_minus_inf(fitness[elites]), UNKNOWN).astype(jnp.float32),
            generation=state.generation + 1,
        )

    def solution(self, state: PyTreeDict) -> Params:
        """The best individual of the last generation that was evaluated; the given solution before."""
        return jax.tree.map(lambda x: x[0], state.population)
