"""Cells around points that are spread evenly (Vassiliades et al. 2018, https://arxiv.org/abs/1610.05729).

Their number is chosen freely, where that of a grid grows with the power of the number of descriptors.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from evorl.ec.archives.archive import Archive
from evorl.types import Key

_ROWS = 4096  # samples whose distances to all points are in memory at one time


class CentroidArchive(Archive):
    """A descriptor belongs to the nearest point, in units of the way from ``low`` to ``high``.

    Attributes:
        num_centroids: number of points C.
        samples_per_centroid: of the samples from which the points are made, see ``evenly_spread_points``.
        num_iterations: how often they are moved.
        centroids: the points as shares of the way from low to high, ``[C, D]``; made of the above if ``None``, the same
            in every run, so that runs with one setting can be compared.
    """

    num_centroids: int = 1024
    samples_per_centroid: int = 25
    num_iterations: int = 30
    centroids: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        points = self.centroids
        if points is None:
            points = _points(self.num_centroids, len(self.low), self.samples_per_centroid, self.num_iterations)
        points = jnp.asarray(points, jnp.float32)
        if points.shape != (self.num_centroids, self.num_dimensions):
            raise ValueError(
                f"an archive of num_centroids={self.num_centroids} has centroids "
                f"{[self.num_centroids, self.num_dimensions]}; got {list(points.shape)}."
            )
        object.__setattr__(self, "centroids", points)

    @property
    def num_cells(self) -> int:
        """``num_centroids``."""
        return self.num_centroids

    def cells_of(self, shares: jax.Array) -> jax.Array:
        """See ``Archive.cells_of``; of equally near points the first."""
        return nearest(shares, self.centroids)


def nearest(rows: jax.Array, points: jax.Array) -> jax.Array:
    """The nearest of the points ``[C, D]`` to each row ``[N, D]``: its number, int32 ``[N]``."""
    distances = jnp.square(rows[:, None, :] - points).sum(axis=-1)
    return jnp.argmin(distances, axis=1).astype(jnp.int32)


def evenly_spread_points(
    key: Key, num_points: int, num_dimensions: int, num_samples: int, num_iterations: int
) -> jax.Array:
    """Points ``[C, D]`` in the unit cube whose cells are about equal: the means that Lloyd's algorithm (1982) finds.

    So the points of a centroidal Voronoi tessellation are approximated (algorithm 2 of Vassiliades et al.).

    Args:
        key: of the samples, the first of which are the first points.
        num_points: C.
        num_dimensions: D.
        num_samples: uniform samples, at least C.
        num_iterations: how often every point is moved to the mean of the samples next to it.
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
