"""NSGA-II: a population towards the Pareto front of several objectives (Deb et al. 2002,
https://doi.org/10.1109/4235.996017).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.ec.operators.parent_selection import tournament_selection
from evorl.ec.operators.pareto import nsga2_order
from evorl.ec.optimizers.multi_objective_optimizer import MultiObjectiveOptimizer
from evorl.types import Key, Params, PyTreeDict


class NSGA2(MultiObjectiveOptimizer):
    """The best of parents and children by front and crowding are the next parents, best first.

    Attributes:
        tournament_size: how many compete to be a parent, by front and then by crowding.
    """

    tournament_size: int = 2

    @property
    def num_parents(self) -> int:
        """As many as individuals."""
        return self.pop_size

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """The next parents and their children, given the objectives ``[P, M]`` of this generation.

        An individual with an objective that is not finite is worse than any other.
        """
        key, breed_key = jax.random.split(state.key)
        everyone, objectives = self.join(state, fitness)
        survivors = nsga2_order(objectives)[: self.pop_size]
        parents = jax.tree.map(lambda x: x[survivors], everyone)
        place = jnp.arange(self.pop_size)

        def select(key: Key, count: int) -> jax.Array:
            return tournament_selection(key, -place, count, self.tournament_size)

        return state.replace(
            key=key,
            population=self.breed(breed_key, parents, select, self.pop_size),
            parents=parents,
            objectives=objectives[survivors],
            generation=state.generation + 1,
        )

    def solution(self, state: PyTreeDict) -> Params:
        """The first of the parents: an end of the Pareto front that has been found; the given solution before."""
        return jax.tree.map(lambda x: x[0], state.parents)
