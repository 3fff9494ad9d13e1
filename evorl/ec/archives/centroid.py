"""Archive with cells around evenly spread points (CVT, Vassiliades et al. 2018, https://arxiv.org/abs/1610.05729).

The number of cells is a setting. In a grid, it would grow exponentially with the number of dimensions.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from evorl.config.values import require_positive, whole_number
from evorl.ec.archives.archive import Archive
from evorl.types import Key

_ROWS = 4096  # number of samples whose distances to all points are in memory at a time


class CentroidArchive(Archive):
    """Archive whose cells are the Voronoi cells of C points, with dimensions scaled from [low, high] to [0, 1].

    Attributes:
        num_centroids: number of points and cells C.
        samples_per_centroid: number of random samples per point from which the points are computed.
        num_iterations: number of iterations of Lloyd's algorithm, which computes the points.
        centroids: points ``[C, D]``, scaled to [0, 1]; ``None`` computes them from a fixed key, so that equal settings
            give equal cells.
    """

    num_centroids: int = 1024
    samples_per_centroid: int = 25
    num_iterations: int = 30
    centroids: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "num_centroids", "samples_per_centroid")
        whole_number(self.num_iterations, "num_iterations", 0, 2**31 - 1)
        points = self.centroids
        if points is None:
            points = _points(self.num_centroids, len(self.low), self.samples_per_centroid, self.num_iterations)
        elif not isinstance(points, jax.core.Tracer) and not np.isfinite(np.asarray(points, np.float32)).all():
            raise ValueError("centroids must be finite numbers, but some are not: correct them, or set centroids=null.")
        points = jnp.asarray(points, jnp.float32)
        if points.shape != (self.num_centroids, self.num_dimensions):
            raise ValueError(
                f"centroids must have shape {[self.num_centroids, self.num_dimensions]} with num_centroids="
                f"{self.num_centroids}, got {list(points.shape)}: set centroids=null to compute them."
            )
        object.__setattr__(self, "centroids", points)

    @property
    def num_cells(self) -> int:
        return self.num_centroids

    def cells_of(self, shares: jax.Array) -> jax.Array:
        return nearest(shares, self.centroids)


def nearest(rows: jax.Array, points: jax.Array) -> jax.Array:
    """Return the index, int32 ``[N]``, of the point ``[C, D]`` nearest to each row ``[N, D]``; ties go to the first."""
    distances = jnp.square(rows[:, None, :] - points).sum(axis=-1)
    return jnp.argmin(distances, axis=1).astype(jnp.int32)


def evenly_spread_points(
    key: Key, num_points: int, num_dimensions: int, num_samples: int, num_iterations: int
) -> jax.Array:
    """Return points ``[C, D]`` in the unit cube with cells of similar size, computed by Lloyd's algorithm (1982).

    The points approximate a centroidal Voronoi tessellation (algorithm 2 of Vassiliades et al.).

    Args:
        key: random key of the samples; the initial points are the first samples.
        num_points: number of points C.
        num_dimensions: number of dimensions D.
        num_samples: number of uniform samples, at least C.
        num_iterations: number of times every point moves to the mean of its nearest samples.
    """
    samples = jax.random.uniform(key, (num_samples, num_dimensions))

    def move(_: int, points: jax.Array) -> jax.Array:
        near = jax.lax.map(lambda row: nearest(row[None], points)[0], samples, batch_size=min(_ROWS, num_samples))
        count = jax.ops.segment_sum(jnp.ones(num_samples), near, num_points)
        sums = jax.ops.segment_sum(samples, near, num_points)
        return jnp.where(count[:, None] > 0, sums / jnp.maximum(count, 1.0)[:, None], points)

    return jax.lax.fori_loop(0, num_iterations, move, samples[:num_points])


@functools.lru_cache(maxsize=16)
def _points(num_points: int, num_dimensions: int, samples_each: int, num_iterations: int) -> jax.Array:
    with jax.ensure_compile_time_eval():
        make = jax.jit(evenly_spread_points, static_argnums=(1, 2, 3, 4))
        return make(jax.random.key(0), num_points, num_dimensions, samples_each * num_points, num_iterations)
