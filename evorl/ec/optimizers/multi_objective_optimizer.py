"""What optimizers of several objectives have in common: parents, and the objectives that they reached."""

from __future__ import annotations

from abc import abstractmethod

import chex
import jax
import jax.numpy as jnp

from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.types import Key, Params, PyTreeDict


class MultiObjectiveOptimizer(BreedingOptimizer):
    """Fitness is ``[P, M]``, all of it maximised; parents live on until children take their place.

    The state holds ``parents`` with their ``objectives`` ``[N, M]``. At first they are copies of the given solution,
    infinitely bad, so that the individuals of the first generation take their places.

    Attributes:
        num_objectives: number of objectives M.
    """

    num_objectives: int = 2

    @property
    @abstractmethod
    def num_parents(self) -> int:
        """Parents N, the most that survive a generation."""

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        """The first population around ``solution``, to be asked for."""
        parents = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_parents, *jnp.shape(x))), solution)
        unknown = jnp.full((self.num_parents, self.num_objectives), -jnp.inf, jnp.float32)
        return super().init(solution, key) | {"parents": parents, "objectives": unknown}

    def at_progress(self, state: PyTreeDict, progress: jax.Array) -> PyTreeDict:
        """The state when this share of the search is over, for optimizers that go by it."""
        return state

    def join(self, state: PyTreeDict, fitness: jax.Array) -> tuple[Params, jax.Array]:
        """Parents and then children, leaves ``[N + P, ...]``, and their objectives ``[N + P, M]``."""
        chex.assert_shape(fitness, (self.pop_size, self.num_objectives))
        everyone = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.parents, state.population)
        return everyone, jnp.concatenate([state.objectives, fitness.astype(state.objectives.dtype)])
