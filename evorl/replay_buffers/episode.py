"""Steps of whole episodes, for hindsight relabelling and methods on trajectories: what is stored are single steps.

Every stored step knows which of its episode it is, and the first one, once the episode has ended, how long that was.
Both are written with the step, so that nothing looks through the ring: the steps of an environment whose episodes are
stored whole lie side by side, and the first of them is found by bisection.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.random import as_typed_key
from evorl.replay_buffers.ring import DROPPED, ReplayState, add_rows, rows_to_write, take
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key, PyTreeData


class EpisodeSpan(PyTreeData):
    """Where steps stand in their episodes; int32, all of one shape.

    Attributes:
        step: the number of the step in its episode, from 0.
        start: the row of the episode's first step.
        end: the row of its last step; of an episode that still runs, of the newest one.
        length: steps from the first to the last.
    """

    step: jax.Array
    start: jax.Array
    end: jax.Array
    length: jax.Array


class EpisodeReplayState(ReplayState):
    """The contents of a ring and where its episodes are.

    Attributes:
        steps: of each step its number in its episode, from 0, int32 ``[R, B]``.
        lengths: at the first step of an ended episode its length, 0 elsewhere, int32 ``[R, B]``.
    """

    steps: jax.Array
    lengths: jax.Array

    def span(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> EpisodeSpan:
        """The episodes of the steps at ``(rows, envs)``: to draw another step of the same one, or to take it whole.

        Args:
            rows: ``[...]``, filled rows, of episodes whose first step is stored.
            envs: ``[...]``, global numbers of the environments.
            num_envs: number of environments over all devices.
        """
        num_rows = self.steps.shape[0]
        step = take(self.steps, rows, envs, num_envs)
        start = (rows - step) % num_rows
        ended_length = take(self.lengths, start, envs, num_envs)
        length = jnp.where(ended_length > 0, ended_length, self.num_from(start, envs, num_envs))
        return EpisodeSpan(step=step, start=start, end=(start + length - 1) % num_rows, length=length)


def times_in_batch(dones: jax.Array, is_written: jax.Array, running: jax.Array) -> tuple[jax.Array, jax.Array]:
    """When the steps of a batch are, and when their episodes start; from the first one on that is written.

    Args:
        dones: of the steps that are written, bool ``[T, B]``.
        is_written: which are, bool ``[T, 1]``.
        running: steps of each episode that ran before, int32 ``[B]``.

    Returns:
        int32 ``[T, 1]`` and ``[T + 1, B]``: the last row is of what comes after the batch.
    """
    time = jnp.cumsum(is_written, axis=0, dtype=jnp.int32) - 1
    before = -running[None]
    return time, jax.lax.cummax(jnp.concatenate([before, jnp.where(dones, time + 1, before)]), axis=0)


def draw_in_runs(lengths: jax.Array, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
    """``num`` runs of steps in proportion to their lengths ``[M]``, and one step of each: int32 ``[num]`` each."""
    until = jnp.cumsum(lengths)
    flat = jax.random.randint(as_typed_key(key), (num,), 0, jnp.maximum(until[-1], 1))
    runs = jnp.minimum(jnp.searchsorted(until, flat, side="right"), lengths.shape[0] - 1).astype(jnp.int32)
    return runs, flat - (until - lengths)[runs]


class EpisodeReplayBuffer(UniformReplayBuffer):
    """A ring of the latest transitions, drawn by episodes: one in proportion to its length, then one of its steps.

    So each step of the episodes that can be drawn is equally likely. They are those whose first step is stored, and,
    unless ``only_complete`` is false, whose last is too. What is stored are ``SampleBatch`` with ``dones``; the first
    step of each environment starts an episode. From a buffer without such an episode anything is drawn:
    ``num_choices`` is 0.

    Attributes:
        only_complete: whether episodes that still run are left out; those that have lost their beginning always are.
    """

    only_complete: bool = True

    def num_bytes(self, sample_spec: Any) -> int:
        """Memory the ring will take over all devices, before it is allocated."""
        return super().num_bytes(sample_spec) + 2 * 4 * self.num_rows * self.num_envs

    def init(self, sample_spec: Any) -> EpisodeReplayState:
        """An empty buffer for transitions like ``sample_spec``: one transition of one environment, no leading axes."""
        ring = super().init(sample_spec)
        none = jnp.zeros(ring.data.dones.shape, jnp.int32)
        return EpisodeReplayState(data=ring.data, cursor=ring.cursor, size=ring.size, steps=none, lengths=none)

    def add(self, state: Any, batch: Any, mask: jax.Array | None = None) -> EpisodeReplayState:
        """The buffer with ``batch`` added, leaves ``[T, B, ...]``; see ``ring.add_rows``."""
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
        return add_rows(state, batch, mask).replace(
            steps=state.steps.at[rows].set(steps, mode="drop"),
            lengths=lengths,
        )

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """``(rows, envs)`` of ``num`` steps, int32 ``[num]`` each, with replacement."""
        first, count = self._over_devices(self._drawable(state))
        envs, step = draw_in_runs(count, key, num)
        return (state.cursor - state.size + first[envs] + step) % self.num_rows, envs

    def num_choices(self, state: Any) -> jax.Array:
        """How many steps can be drawn over all devices, int32 scalar."""
        return self._over_devices(self._drawable(state))[1].sum()

    def _running_length(self, state: EpisodeReplayState) -> jax.Array:
        """Steps of the episodes that run, of this device's environments, int32 ``[B]``; 0 where one has just ended."""
        newest = (state.cursor - 1) % self.num_rows
        has_ended = state.data.dones[newest].astype(jnp.bool_) | (state.size == 0)
        return jnp.where(has_ended, 0, state.steps[newest] + 1)

    def _drawable(self, state: EpisodeReplayState) -> tuple[jax.Array, jax.Array]:
        """The age of the first step that can be drawn, and how many follow side by side: int32 ``[B]`` each."""
        oldest, envs = state.cursor - state.size, jnp.arange(state.steps.shape[1])

        def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds  # the first age whose episode started at 0 or later is in [low, high]
            middle = (low + high) // 2
            is_whole = state.steps[(oldest + middle) % self.num_rows, envs] <= middle
            return jnp.where(is_whole, low, jnp.minimum(middle + 1, high)), jnp.where(is_whole, middle, high)

        nowhere = jnp.zeros_like(envs, jnp.int32)
        first, _ = jax.lax.fori_loop(
            0, self.num_rows.bit_length(), halve, (nowhere, jnp.broadcast_to(state.size, nowhere.shape))
        )
        end = state.size - self._running_length(state) if self.only_complete else state.size
        return first, jnp.maximum(end - first, 0)
