"""NSGA-II: a population towards the Pareto front of several objectives (Deb et al. 2002,
https://doi.org/10.1109/4235.996017).
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from evorl.ec.operators.non_dominated import nsga2_order
from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.types import Key, Params, PyTreeDict


class NSGA2(BreedingOptimizer):
    """The best of parents and children by front and crowding are the next parents; their children are asked for.

    The state holds ``parents`` with their ``objectives`` ``[P, M]``, best first. At first they are copies of the given
    solution that count as infinitely bad, so that the individuals of the first generation become the parents.

    Attributes:
        num_objectives: number of objectives M, which are maximised.
    """

    num_objectives: int = 2

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first population around ``solution``, to be asked for."""
        state = super().init(solution, key)
        unknown = jnp.full((self.pop_size, self.num_objectives), -jnp.inf)
        parents = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.pop_size, *jnp.shape(x))), solution)
        return state | {"parents": parents, "objectives": unknown}

    def tell(self, state: PyTreeDict, fitness: jax.Array) -> PyTreeDict:
        """The next parents and their children, given the objectives ``[P, M]`` of this generation.

        An individual with NaN in an objective is worse than any other.
        """
        chex.assert_shape(fitness, (self.pop_size, self.num_objectives))
        key, breed_key = jax.random.split(state.key)
        objectives = jnp.concatenate([state.objectives, fitness.astype(state.objectives.dtype)])
        survivors = nsga2_order(objectives)[: self.pop_size]
        parents = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[survivors], state.parents, state.population)
        children = self._children(breed_key, parents, -jnp.arange(self.pop_size), self.pop_size)
        return state.replace(
            key=key,
            population=children,
            parents=parents,
            objectives=objectives[survivors],
            generation=state.generation + 1,
        )

    def solution(self, state: PyTreeDict) -> Params:
        """The first of the parents: an end of the Pareto front that has been found; the given solution before."""
        return jax.tree.map(lambda x: x[0], state.parents)
