"""Replay buffer of single steps that tracks episodes, for hindsight relabeling and trajectory-based methods.

Every step is stored with its index in its episode, and the first step of a finished episode also with the episode's
length. The ring is never searched linearly: the steps of an environment's completely stored episodes are contiguous,
and bisection finds the first of them.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from evorl.ops.random import as_typed_key
from evorl.replay_buffers.ring import DROPPED, ReplayState, add_rows, rows_to_write, take
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key, PyTreeData


class EpisodeSpan(PyTreeData):
    """Positions of steps in their episodes; int32 arrays of the same shape.

    Attributes:
        step: index of the step in its episode, from 0.
        start: row of the episode's first step.
        end: row of the episode's last step, or of the newest step of a running episode.
        length: number of steps from start to end.
    """

    step: jax.Array
    start: jax.Array
    end: jax.Array
    length: jax.Array


class EpisodeReplayState(ReplayState):
    """State of a ring buffer that tracks episodes.

    Attributes:
        steps: index of each step in its episode, from 0, int32 ``[R, B]``.
        lengths: length of a finished episode at its first step, 0 elsewhere, int32 ``[R, B]``.
    """

    steps: jax.Array
    lengths: jax.Array

    def span(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> EpisodeSpan:
        """Return the positions of the steps at ``(rows, envs)`` in their episodes.

        Args:
            rows: filled rows ``[...]`` of episodes whose first step is stored.
            envs: global environment indices ``[...]``.
            num_envs: number of environments over all devices.
        """
        num_rows = self.steps.shape[0]
        step = take(self.steps, rows, envs, num_envs)
        start = (rows - step) % num_rows
        ended_length = take(self.lengths, start, envs, num_envs)
        length = jnp.where(ended_length > 0, ended_length, self.num_from(start, envs, num_envs))
        return EpisodeSpan(step=step, start=start, end=(start + length - 1) % num_rows, length=length)

    def end_episodes(self, mask: Any) -> Self:
        rows, newest = jnp.arange(self.steps.shape[-2])[:, None], self.cursor[..., None, None] - 1
        lengths = jnp.where(rows == newest % len(rows), self.steps + 1, 0).max(axis=-2, keepdims=True)  # [..., 1, B]
        is_start = (rows == (newest + 1 - lengths) % len(rows)) & (lengths <= self.size[..., None, None]) & mask
        return super().end_episodes(mask).replace(lengths=jnp.where(is_start, lengths, self.lengths))


def times_in_batch(dones: jax.Array, is_written: jax.Array, running: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the index of each step of a batch and of its episode's first step; the first written step has index 0.

    Args:
        dones: True where an episode ended with a written step, bool ``[T, B]``.
        is_written: True for steps that are written, bool ``[T, 1]``.
        running: number of earlier steps of each running episode, int32 ``[B]``.

    Returns:
        int32 ``[T, 1]`` and ``[T + 1, B]``, negative for earlier starts; the last row is for the step after the batch.
    """
    time = jnp.cumsum(is_written, axis=0, dtype=jnp.int32) - 1
    before = -running[None]
    return time, jax.lax.cummax(jnp.concatenate([before, jnp.where(dones, time + 1, before)]), axis=0)


def draw_in_runs(lengths: jax.Array, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
    """Sample runs of steps in proportion to ``lengths`` ``[M]``; return their indices and a step in each, ``[num]``."""
    until = jnp.cumsum(lengths)
    flat = jax.random.randint(as_typed_key(key), (num,), 0, jnp.maximum(until[-1], 1))
    runs = jnp.minimum(jnp.searchsorted(until, flat, side="right"), lengths.shape[0] - 1).astype(jnp.int32)
    return runs, flat - (until - lengths)[runs]


class EpisodeReplayBuffer(UniformReplayBuffer):
    """Ring of the latest transitions: samples episodes in proportion to their lengths, then a step within each.

    Each step of the eligible episodes is therefore equally likely. An episode is eligible if its first step and, if
    ``only_complete``, also its last step are stored. Transitions are ``SampleBatch`` with ``dones``; the first step of
    each environment starts an episode. If no episode is eligible, ``num_choices`` is 0 and samples are arbitrary.

    Attributes:
        only_complete: exclude running episodes; episodes whose beginning was overwritten are always excluded.
    """

    only_complete: bool = True

    def num_bytes(self, sample_spec: Any) -> int:
        return super().num_bytes(sample_spec) + 2 * 4 * self.num_rows * self.num_envs

    def init(self, sample_spec: Any) -> EpisodeReplayState:
        ring = super().init(sample_spec)
        zeros = jnp.zeros(ring.data.dones.shape, jnp.int32)
        return EpisodeReplayState(data=ring.data, cursor=ring.cursor, size=ring.size, steps=zeros, lengths=zeros)

    def add(self, state: Any, batch: Any, mask: jax.Array | None = None) -> EpisodeReplayState:
        rows, added = rows_to_write(state, batch.dones.shape[0], mask)
        is_written = (rows != DROPPED)[:, None]
        dones = batch.dones.astype(jnp.bool_) & is_written
        time, starts = times_in_batch(dones, is_written, self._running_length(state))
        start = starts[:-1]  # [T, B]
        oldest = added - jnp.minimum(state.size + added, self.num_rows)
        start_rows = jnp.where(dones & (start >= oldest), (state.cursor + start) % self.num_rows, DROPPED)
        envs = jnp.broadcast_to(jnp.arange(dones.shape[1], dtype=jnp.int32), dones.shape)
        steps = time - start
        lengths = state.lengths.at[rows].set(0, mode="drop").at[start_rows, envs].set(steps + 1, mode="drop")
        return add_rows(state, batch, mask).replace(steps=state.steps.at[rows].set(steps, mode="drop"), lengths=lengths)

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        first, count = self._over_devices(self._drawable(state))
        envs, step = draw_in_runs(count, key, num)
        return (state.cursor - state.size + first[envs] + step) % self.num_rows, envs

    def num_choices(self, state: Any) -> jax.Array:
        """Return the number of eligible steps over all devices, int32 scalar."""
        return self._over_devices(self._drawable(state))[1].sum()

    def _running_length(self, state: EpisodeReplayState) -> jax.Array:
        """Return the lengths of this device's running episodes, int32 ``[B]``; 0 where no episode is running."""
        newest = (state.cursor - 1) % self.num_rows
        has_ended = state.data.dones[newest].astype(jnp.bool_) | (state.size == 0)
        return jnp.where(has_ended, 0, state.steps[newest] + 1)

    def _drawable(self, state: EpisodeReplayState) -> tuple[jax.Array, jax.Array]:
        """Return the first eligible step, counted from the oldest row, and the number of eligible steps, ``[B]``."""
        oldest, envs = state.cursor - state.size, jnp.arange(state.steps.shape[1])

        def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds  # the first step of an episode with a stored start is in [low, high]
            middle = (low + high) // 2
            is_whole = state.steps[(oldest + middle) % self.num_rows, envs] <= middle
            return jnp.where(is_whole, low, jnp.minimum(middle + 1, high)), jnp.where(is_whole, middle, high)

        zeros = jnp.zeros_like(envs, jnp.int32)
        bounds = zeros, jnp.broadcast_to(state.size, zeros.shape)
        first, _ = jax.lax.fori_loop(0, self.num_rows.bit_length(), halve, bounds)
        end = state.size - self._running_length(state) if self.only_complete else state.size
        return first, jnp.maximum(end - first, 0)
