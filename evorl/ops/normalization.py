"""Running statistics of observations and rewards, and normalization with them.

Statistics have the structure of one observation (an array or a pytree of arrays) and are float32 for any dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from evorl.ops.collectives import max_over_shards, sum_shards
from evorl.ops.trees import as_float, finite_rows, zeros_where
from evorl.types import Observation, PyTreeData

# Largest exact float32 count. Beyond it, the statistics reflect about this many most recent observations.
MAX_COUNT = float(2**24)
_MIN_VARIANCE = 1e-8


class RunningStatistics(PyTreeData):
    """Statistics of the observations so far.

    Attributes:
        count: number of observations, float32 scalar, at most ``MAX_COUNT``.
        mean: mean observation, a pytree like one observation.
        m2: sum of squared deviations from the mean, with the structure of ``mean``; the variance is ``m2 / count``.
    """

    count: jax.Array
    mean: Observation
    m2: Observation

    @property
    def variance(self) -> Observation:
        """Population variance; 1 before the first observation."""
        count = jnp.maximum(self.count, 1.0)
        return jax.tree.map(lambda m2: jnp.where(self.count > 0.0, m2 / count, 1.0), self.m2)


def init_statistics(spec: Any) -> RunningStatistics:
    """Return empty statistics.

    Args:
        spec: one observation, or its shapes: a pytree of objects with a ``shape`` (arrays, ``jax.ShapeDtypeStruct``,
            ``Box`` spaces).
    """

    def zeros() -> Observation:
        return jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, jnp.float32), spec, is_leaf=lambda node: hasattr(node, "shape")
        )

    return RunningStatistics(count=jnp.zeros((), jnp.float32), mean=zeros(), m2=zeros())


def update_statistics(
    statistics: RunningStatistics, batch: Observation, mask: jax.Array | None = None, *, sharded: bool = False
) -> RunningStatistics:
    """Return the statistics with the observations of ``batch`` added.

    Args:
        batch: observations ``[..., *observation]``; the leading axes are the same for every leaf.
        mask: True for observations to include, with the shape of the leading axes; defaults to all. Excluded
            observations may have any values.
        sharded: True if each device of a mesh has different observations; the result then includes all of them.
    """
    chex.assert_trees_all_equal_structs(statistics.mean, batch)
    mean_leaves, batch_leaves = jax.tree.leaves(statistics.mean), jax.tree.leaves(batch)
    if not batch_leaves:
        return statistics
    leading = batch_leaves[0].shape[: batch_leaves[0].ndim - mean_leaves[0].ndim]
    weights = jnp.ones(leading, jnp.float32) if mask is None else jnp.asarray(mask, jnp.float32)
    chex.assert_shape(weights, leading)
    rows = jax.tree.map(lambda x: x.astype(jnp.float32), batch)
    rows = rows if mask is None else zeros_where(weights == 0.0, rows)
    return _with_groups(statistics, weights, rows, None, sum_shards if sharded else lambda tree: tree)


def add_row(statistics: RunningStatistics, obs: Observation, mask: jax.Array) -> RunningStatistics:
    """Return the statistics with one more observation, if ``mask`` is true and the observation is finite (Welford
    1962).

    A loop can update separate statistics of B environments, leaves ``[B, ...]``, with ``jax.vmap(add_row)``, and merge
    them with ``add_groups`` at the end.
    """
    mask = mask & finite_rows(obs, num_axes=0)
    count = statistics.count + mask
    share = 1.0 / jnp.maximum(count, 1.0)
    steps = jax.tree.map(lambda x, mean: jnp.where(mask, x.astype(jnp.float32) - mean, 0.0), obs, statistics.mean)
    return RunningStatistics(
        count=count,
        mean=jax.tree.map(lambda mean, step: mean + share * step, statistics.mean, steps),
        m2=jax.tree.map(lambda m2, step: m2 + (1.0 - share) * jnp.square(step), statistics.m2, steps),
    )


def add_groups(statistics: RunningStatistics, groups: RunningStatistics) -> RunningStatistics:
    """Merge the statistics of B groups per device, leaves ``[B, ...]``, of all devices into ``statistics``."""
    return _with_groups(statistics, groups.count, groups.mean, groups.m2, sum_shards)


def _with_groups(
    statistics: RunningStatistics,
    counts: jax.Array,
    means: Observation,
    m2s: Observation | None,
    join: Callable[[Any], Any],
) -> RunningStatistics:
    """Merge groups of ``counts`` rows (parallel update of Chan et al. 1979); ``m2s=None`` for groups of one row."""

    def group_sum(x: jax.Array) -> jax.Array:
        weights = counts.reshape(counts.shape + (1,) * (x.ndim - counts.ndim))
        return jnp.sum(x * weights, axis=tuple(range(counts.ndim)))

    added, sums = join((jnp.sum(counts), jax.tree.map(group_sum, means)))
    mean = jax.tree.map(lambda s: s / jnp.maximum(added, 1.0), sums)
    m2 = jax.tree.map(lambda x, mean: group_sum(jnp.square(x - mean)), means, mean)
    if m2s is not None:
        m2 = jax.tree.map(lambda between, within: between + jnp.sum(within, axis=0), m2, m2s)
    total = statistics.count + added
    share = added / jnp.maximum(total, 1.0)
    count = jnp.minimum(total, MAX_COUNT)
    excess = jnp.maximum(added - (MAX_COUNT - statistics.count), 0.0)  # ``total`` is rounded if it exceeds MAX_COUNT
    weight = 1.0 - excess / (MAX_COUNT + excess)

    def merged_m2(old_m2: jax.Array, new_m2: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
        return weight * (old_m2 + new_m2 + jnp.square(new - old) * statistics.count * share)

    return RunningStatistics(
        count=count,
        mean=jax.tree.map(lambda old, new: old + (new - old) * share, statistics.mean, mean),
        m2=jax.tree.map(merged_m2, statistics.m2, join(m2), statistics.mean, mean),
    )


def normalize(statistics: RunningStatistics, obs: Observation, clip: jax.Array | float = 10.0) -> Observation:
    """Return ``clip((obs - mean) / std, -clip, clip)`` in float32; if ``count`` is 0, return ``as_float(obs)``."""

    def standardize(x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        deviation = jnp.asarray(x, jnp.float32) - mean
        scaled = jnp.clip(deviation * jax.lax.rsqrt(jnp.maximum(variance, _MIN_VARIANCE)), -clip, clip)
        return jnp.where(statistics.count > 0.0, scaled, as_float(x))

    return jax.tree.map(standardize, obs, statistics.mean, statistics.variance)


class RewardScale(PyTreeData):
    """State of reward scaling: statistics of discounted sums of past rewards.

    Attributes:
        statistics: statistics of these sums, over all steps of all environments.
        sums: discounted sum of each environment's running episode, ``[B]``.
        greatest: largest absolute value of these sums so far, a scalar; ``None`` if not recorded, see ``of_none``.
    """

    statistics: RunningStatistics
    sums: jax.Array
    greatest: jax.Array | None = None

    @classmethod
    def of_none(cls, num_envs: int, *, bounded: bool = False) -> RewardScale:
        """Return the scale of ``num_envs`` environments before any reward; ``bounded=True`` records ``greatest``."""
        statistics, greatest = init_statistics(jax.ShapeDtypeStruct((), jnp.float32)), jnp.zeros(())
        return cls(statistics=statistics, sums=jnp.zeros(num_envs), greatest=greatest if bounded else None)

    def after(self, rewards: jax.Array, dones: jax.Array, discount: jax.Array | float) -> RewardScale:
        """Return the scale updated with the next T steps of this device's B environments.

        Args:
            rewards: rewards, ``[T, B]``.
            dones: True where an episode ended, ``[T, B]``; the next sum starts at 0.
            discount: factor by which a sum is multiplied before the next reward is added.
        """

        def one_step(sums: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            reward, done = step
            sums = discount * sums + reward
            return jnp.where(done, 0.0, sums), sums

        last, sums = jax.lax.scan(one_step, self.sums, (rewards, dones.astype(bool)))
        greatest = self.greatest
        if greatest is not None:
            greatest = jnp.maximum(greatest, max_over_shards(jnp.abs(sums).max()))
        return RewardScale(update_statistics(self.statistics, sums, sharded=True), sums=last, greatest=greatest)

    def end_episodes(self, mask: Any) -> RewardScale:
        """Return the scale whose sums restart at 0 where ``mask`` ``[B]`` is True."""
        return self.replace(sums=jnp.where(mask, 0.0, self.sums))


def normalize_rewards(
    scale: RewardScale, rewards: jax.Array, dones: jax.Array, discount: jax.Array | float, clip: float = 10.0
) -> tuple[jax.Array, RewardScale]:
    """Divide rewards by the standard deviation of discounted sums of past rewards (Engstrom et al. 2020,
    https://arxiv.org/abs/2005.12729, section 3; VecNormalize of Stable-Baselines3). The sign is preserved.

    Args:
        scale: scale before these steps.
        rewards: rewards of this device's environments, ``[T, B]``.
        dones: True where an episode ended, ``[T, B]``.
        discount: discount factor of the sums.
        clip: bound on the absolute value of the result.

    Returns:
        The rewards ``[T, B]``, divided by the scale that includes these steps, and that scale.
    """
    scale = scale.after(rewards, dones, discount)
    std = jnp.sqrt(jnp.maximum(scale.statistics.variance, _MIN_VARIANCE))
    return jnp.clip(rewards / std, -clip, clip), scale


def bounded_rewards(scale: RewardScale, rewards: jax.Array, bound: jax.Array | float) -> jax.Array:
    """Divide rewards so that discounted sums of past rewards have standard deviation at most 1, and absolute value at
    most ``bound`` (Lee et al. 2025, https://arxiv.org/abs/2502.15280, section 4.3).

    The divisor is ``max(sqrt(variance + 1e-8), greatest / bound)`` of these sums.

    Args:
        scale: scale of the steps so far, created with ``bounded=True``.
        rewards: rewards of any shape, such as a batch from a replay buffer.
        bound: bound of the sums.
    """
    assert scale.greatest is not None, "bounded_rewards needs RewardScale.of_none(..., bounded=True)"
    return rewards / jnp.maximum(jnp.sqrt(scale.statistics.variance + _MIN_VARIANCE), scale.greatest / bound)
