"""Genetic algorithm (Holland 1975) with elitism: children of selected parents replace all but the elites."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from evorl.ec.fitness_shaping import failures_to_minus_inf
from evorl.ec.operators.parent_selection import tournament_selection, truncation_selection
from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.ops.trees import row_of
from evorl.types import Key, Params, PyTreeDict

UNKNOWN = jnp.finfo(jnp.float32).min  # elite fitness before the first evaluation: the lowest finite float32


class GeneticAlgorithm(BreedingOptimizer):
    """Genetic algorithm with unchanged elites, tournament selection, crossover and mutation.

    Elites are reevaluated in each generation. If an elite's new fitness is not finite, its previous fitness is used.

    Attributes:
        num_elites: number of best individuals that survive unchanged; they are the first of the next generation.
        tournament_size: number of individuals per tournament; the fittest becomes a parent.
    """

    num_elites: int = 1
    tournament_size: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_elites < self.pop_size:
            raise ValueError(f"num_elites={self.num_elites} must be at least 1 and below pop_size={self.pop_size}.")

    @property
    def num_replaceable(self) -> int:
        """Number of individuals that ``inject`` can replace: the children, which follow the elites."""
        return self.pop_size - self.num_elites

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """Return the initial state, with a population around ``solution`` and no elites yet."""
        unknown = jnp.full(self.num_elites, UNKNOWN, jnp.float32)
        return super().init(solution, key) | {"elite_fitness": unknown}

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Select elites and parents by the fitness ``[P]``, and breed children; non-finite fitness is the worst."""
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
        """Return the best individual of the last evaluated generation; before the first one, the initial solution."""
        return row_of(state.population)
