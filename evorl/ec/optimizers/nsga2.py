"""NSGA-II, a multi-objective genetic algorithm (Deb et al. 2002, https://doi.org/10.1109/4235.996017)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ec.operators.parent_selection import tournament_selection
from evorl.ec.operators.pareto import nsga2_order
from evorl.ec.optimizers.multi_objective_optimizer import MultiObjectiveOptimizer
from evorl.ops.trees import row_of
from evorl.types import Key, Params, PyTreeDict


class NSGA2(MultiObjectiveOptimizer):
    """NSGA-II: the best of parents and children, by front and crowding distance, are the next parents.

    Attributes:
        tournament_size: number of individuals per tournament; the winner by front, then crowding distance, is a parent.
    """

    tournament_size: int = 2

    @property
    def num_parents(self) -> int:
        return self.pop_size

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """Select the next parents and breed their children, given the objectives ``[P, M]`` of this generation.

        Individuals with a non-finite objective are worse than all others.
        """
        key, breed_key = jax.random.split(state.key)
        individuals, objectives = self.join(state, fitness)
        survivors = nsga2_order(objectives)[: self.pop_size]
        parents = jax.tree.map(lambda x: x[survivors], individuals)

        def select(key: Key, count: int) -> jax.Array:
            return tournament_selection(key, -jnp.arange(self.pop_size), count, self.tournament_size)

        return state.replace(
            key=key,
            population=self.breed(breed_key, parents, select, self.pop_size),
            parents=parents,
            objectives=objectives[survivors],
            generation=state.generation + 1,
        )

    def solution(self, state: PyTreeDict) -> Params:
        """Return a parent at one end of the Pareto front; before the first generation, the initial solution."""
        return row_of(state.parents)
