"""Dominated Novelty Search (Bahlous-Boldi, Faldor et al. 2025, https://arxiv.org/abs/2502.00593).

The archive is a population without cells. A solution competes with all fitter solutions: the farther away the nearest
of them are in descriptor space, the higher its score, the dominated novelty.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.config.values import require_positive
from evorl.ec.archives.archive import ArchiveState, Verdicts
from evorl.ec.archives.grid import GridArchive
from evorl.types import Params


class DominatedNoveltyArchive(GridArchive):
    """Population of the solutions with the largest dominated novelty. The grid of ``bins`` is only used for metrics.

    The state is an ``ArchiveState`` with C = ``capacity`` slots. Distances are measured in units of the box from
    ``low`` to ``high``, which does not bound descriptors. Time and memory are quadratic in ``capacity`` + candidates.

    Attributes:
        capacity: maximum number of solutions.
        num_neighbors: number k of nearest fitter solutions, to which the distance is averaged.
    """

    capacity: int = 1024
    num_neighbors: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "capacity", "num_neighbors")
        if self.threshold_min is not None:
            raise ValueError(
                f"threshold_min={self.threshold_min} needs an archive with cells, unlike dominated_novelty: set it to "
                "null, or choose name=grid or name=centroid."
            )

    @property
    def num_slots(self) -> int:
        return self.capacity

    def add(self, state: ArchiveState, solutions: Params, fitness: jax.Array, descriptors: jax.Array) -> ArchiveState:
        """Return the state with the ``capacity`` solutions of largest ``novelty``, of stored solutions and candidates.

        For arguments and errors see ``Archive.add``. Ties go to stored solutions.
        """
        is_valid, _ = self.valid_cells(fitness, descriptors)
        candidates = solutions, jnp.where(is_valid, fitness, -jnp.inf), jnp.where(is_valid[:, None], descriptors, 0.0)
        old = state.solutions, state.fitness, state.descriptors
        both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), old, candidates)
        best = jnp.argsort(-self.novelty(both[1], both[2]), stable=True)[: self.capacity]
        return ArchiveState(*jax.tree.map(lambda x: x[best], both))

    def novelty(self, fitness: jax.Array, descriptors: jax.Array) -> jax.Array:
        """Return the dominated novelty of solutions, ``[N]``.

        This is the mean distance to the k nearest fitter solutions (to all of them if fewer than k), infinity for the
        fittest solution, and -inf for empty slots. Ties in fitness are broken in favor of earlier solutions.

        Args:
            fitness: fitness ``[N]``, minus infinity for empty slots.
            descriptors: descriptors ``[N, D]``.
        """
        num = fitness.shape[0]
        scaled = descriptors / (jnp.asarray(self.high, jnp.float32) - jnp.asarray(self.low, jnp.float32))
        distances = jnp.sqrt(sum(jnp.square(x[:, None] - x) for x in scaled.T))  # [N, N]
        is_tied_earlier = (fitness == fitness[:, None]) & jnp.tri(num, k=-1, dtype=bool)
        is_fitter = (fitness > fitness[:, None]) | is_tied_earlier
        nearest = -jax.lax.top_k(-jnp.where(is_fitter, distances, jnp.inf), min(self.num_neighbors, num))[0]
        count = jnp.isfinite(nearest).sum(axis=1)
        mean = jnp.where(jnp.isfinite(nearest), nearest, 0.0).sum(axis=1) / jnp.maximum(count, 1)
        return jnp.where(fitness > -jnp.inf, jnp.where(count > 0, mean, jnp.inf), -jnp.inf)

    def judge(self, state: ArchiveState, fitness: jax.Array, descriptors: jax.Array) -> Verdicts:
        """Raise ``ValueError``, because an archive without cells cannot judge candidates by cell."""
        raise ValueError("archive.name=dominated_novelty has no cells: set emitter=null, or choose another archive.")

    def cell_fitness(self, fitness: jax.Array, descriptors: jax.Array) -> jax.Array:
        """Return the best fitness in each cell of the grid, ``[num_cells]``, -inf for empty cells."""
        _, cells = self.valid_cells(fitness, descriptors)
        return jax.ops.segment_max(fitness, cells, self.num_cells)
