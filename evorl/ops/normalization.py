"""Running mean and variance of observations, and their use.

Statistics have the structure of one observation (an array or a pytree of arrays) and are float32 whatever the
observation's dtype.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from evorl.ops.collectives import sum_shards
from evorl.ops.trees import finite_rows
from evorl.types import Observation, PyTreeData

# A float32 counts exactly up to here. From here on the statistics forget: they weigh about this many latest rows.
MAX_COUNT = float(2**24)
_MIN_VARIANCE = 1e-8


class RunningStatistics(PyTreeData):
    """Statistics of the rows seen so far.

    Attributes:
        count: number of rows, float32 scalar, at most ``MAX_COUNT``.
        mean: pytree like one observation.
        m2: sums of squared distances from the mean, the same structure; the variance is ``m2 / count``.
    """

    count: jax.Array
    mean: Observation
    m2: Observation

    @property
    def variance(self) -> Observation:
        """Population variance; 1 before any row was seen."""
        count = jnp.maximum(self.count, 1.0)
        return jax.tree.map(lambda m2: jnp.where(self.count > 0.0, m2 / count, 1.0), self.m2)


def init_statistics(spec: Any) -> RunningStatistics:
    """Statistics of no rows.

    Args:
        spec: one observation, or its shape: a pytree of anything with a ``shape`` (arrays, ``jax.ShapeDtypeStruct``,
            boxes).
    """

    def zeros() -> Observation:
        return jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, jnp.float32), spec, is_leaf=lambda node: hasattr(node, "shape")
        )

    return RunningStatistics(count=jnp.zeros((), jnp.float32), mean=zeros(), m2=zeros())


def update_statistics(
    statistics: RunningStatistics, batch: Observation, mask: jax.Array | None = None, *, sharded: bool = False
) -> RunningStatistics:
    """Statistics with the rows of ``batch`` added (Chan et al. 1979, the parallel update).

    Args:
        batch: observations with any leading axes, ``[..., *observation]``, the same for every leaf.
        mask: which rows count, of the shape of those leading axes; all by default.
        sharded: whether every device of a mesh holds different rows; their sums are then joined.
    """
    chex.assert_trees_all_equal_structs(statistics.mean, batch)
    mean_leaves, batch_leaves = jax.tree.leaves(statistics.mean), jax.tree.leaves(batch)
    if not batch_leaves:
        return statistics
    leading = batch_leaves[0].shape[: batch_leaves[0].ndim - mean_leaves[0].ndim]
    join = sum_shards if sharded else (lambda tree: tree)
    weights = jnp.ones(leading, jnp.float32) if mask is None else jnp.asarray(mask, jnp.float32)
    chex.assert_shape(weights, leading)
    axes = tuple(range(len(leading)))

    def row_sum(x: jax.Array) -> jax.Array:
        # Masked rows may hold anything, NaN included.
        row_weights = weights.reshape(leading + (1,) * (x.ndim - len(leading)))
        return jnp.sum(jnp.where(row_weights > 0.0, x * row_weights, 0.0), axis=axes)

    rows = jax.tree.map(lambda x: x.astype(jnp.float32), batch)
    added, sums = join((jnp.sum(weights), jax.tree.map(row_sum, rows)))
    batch_mean = jax.tree.map(lambda s: s / jnp.maximum(added, 1.0), sums)
    batch_m2 = join(jax.tree.map(lambda x, mean: row_sum(jnp.square(x - mean)), rows, batch_mean))
    return _merge(statistics, added, batch_mean, batch_m2)


class ObservationSums(PyTreeData):
    """Sums of rows that are counted one by one, each row of a batch for itself: cheap inside a loop.

    Attributes:
        count: how many were counted, float32 ``[B]``.
        sums: of their distances from ``origin``, ``[B, *observation]``.
        squares: of the squares of these.
        origin: the mean known when counting began, without leading axes: it keeps the squares exact.
    """

    count: jax.Array
    sums: Observation
    squares: Observation
    origin: Observation

    @classmethod
    def start(cls, statistics: RunningStatistics | None, obs: Observation) -> ObservationSums:
        """No rows of observations ``[B, ...]`` yet."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), obs)
        origin = jax.tree.map(lambda x: x[0], zeros) if statistics is None else statistics.mean
        return cls(count=jnp.zeros(jax.tree.leaves(obs)[0].shape[0]), sums=zeros, squares=zeros, origin=origin)

    def add(self, obs: Observation, mask: jax.Array) -> ObservationSums:
        """With the observations ``[B, ...]`` of the rows where ``mask`` ``[B]`` holds and all numbers are finite."""
        mask = mask & finite_rows(obs)

        def counted(x: jax.Array, origin: jax.Array) -> jax.Array:
            rows = mask.reshape(mask.shape + (1,) * (x.ndim - 1))
            return jnp.where(rows, x.astype(jnp.float32) - origin, 0.0)

        distances = jax.tree.map(counted, obs, self.origin)
        return self.replace(
            count=self.count + mask,
            sums=jax.tree.map(jnp.add, self.sums, distances),
            squares=jax.tree.map(lambda s, x: s + jnp.square(x), self.squares, distances),
        )

    def added_to(self, statistics: RunningStatistics) -> RunningStatistics:
        """The statistics with all these rows, of every device of a mesh."""
        total, sums, squares = sum_shards(jax.tree.map(lambda x: x.sum(axis=0), (self.count, self.sums, self.squares)))
        mean = jax.tree.map(lambda s, origin: origin + s / jnp.maximum(total, 1.0), sums, self.origin)
        m2 = jax.tree.map(lambda q, s: jnp.maximum(q - s * s / jnp.maximum(total, 1.0), 0.0), squares, sums)
        return _merge(statistics, total, mean, m2)


def _merge(statistics: RunningStatistics, added: jax.Array, mean: Observation, m2: Observation) -> RunningStatistics:
    total = statistics.count + added
    share = added / jnp.maximum(total, 1.0)
    count = jnp.minimum(total, MAX_COUNT)
    kept = count / jnp.maximum(total, 1.0)

    def merged_m2(old_m2: jax.Array, new_m2: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        return kept * (old_m2 + new_m2 + jnp.square(new - old) * statistics.count * share)

    return RunningStatistics(
        count=count,
        mean=jax.tree.map(lambda old, new: old + (new - old) * share, statistics.mean, mean),
        m2=jax.tree.map(merged_m2, statistics.m2, m2, statistics.mean, mean),
    )


def normalize(statistics: RunningStatistics, obs: Observation, clip: jax.Array | float = 10.0) -> Observation:
    """``clip((obs - mean) / std, -clip, clip)`` in float32; the observation itself while no row was seen."""

    def standardize(x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        x = jnp.asarray(x, jnp.float32)
        scaled = jnp.clip((x - mean) * jax.lax.rsqrt(jnp.maximum(variance, _MIN_VARIANCE)), -clip, clip)
        return jnp.where(statistics.count > 0.0, scaled, x)

    return jax.tree.map(standardize, obs, statistics.mean, statistics.variance)
