"""Base class of multi-objective optimizers, which store parents and their objectives."""

from __future__ import annotations

from abc import abstractmethod

import chex
import jax
import jax.numpy as jnp

from evorl.ec.optimizers.breeding import BreedingOptimizer
from evorl.ops.projection import projected
from evorl.types import Key, Params, PyTreeDict


class MultiObjectiveOptimizer(BreedingOptimizer):
    """Optimizer that maximizes M objectives; parents survive until better children replace them.

    The state has N ``parents`` and their ``objectives`` ``[N, M]``. Initially, parents are copies of the initial
    solution with objectives -inf, so that the first generation replaces them.

    Attributes:
        num_objectives: number of objectives M.
    """

    num_objectives: int = 2

    @property
    @abstractmethod
    def num_parents(self) -> int:
        """Number of parents N, the maximum number of survivors of a generation."""

    def init(self, solution: Params, key: Key) -> PyTreeDict:
        solution = projected(solution, self.projection)
        parents = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_parents, *jnp.shape(x))), solution)
        unknown = jnp.full((self.num_parents, self.num_objectives), -jnp.inf, jnp.float32)
        return super().init(solution, key) | {"parents": parents, "objectives": unknown}

    def at_progress(self, state: PyTreeDict, progress: jax.Array) -> PyTreeDict:
        """Return the state at ``progress``, the completed fraction of the search; by default unchanged."""
        return state

    def join(self, state: PyTreeDict, fitness: jax.Array) -> tuple[Params, jax.Array]:
        """Return parents followed by children, leaves ``[N + P, ...]``, and their objectives ``[N + P, M]``."""
        chex.assert_shape(fitness, (self.pop_size, self.num_objectives))
        individuals = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.parents, state.population)
        return individuals, jnp.concatenate([state.objectives, fitness.astype(state.objectives.dtype)])
