"""Sequences of consecutive steps for recurrent learners, assembled from stored single steps.

A complete sequence consists of stored steps only, so it never crosses the write position. It may extend
across the end of an episode: ``starts`` marks the steps at which the recurrent state is reset.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.random import as_typed_key
from evorl.ops.sum_tree import set_weights
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer, PrioritizedReplayState
from evorl.replay_buffers.ring import DROPPED, ReplayState, add_rows, rows_to_write, take
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict


def take_sequences(state: ReplayState, rows: jax.Array, envs: jax.Array, num_envs: int, length: int) -> SampleBatch:
    """Return the sequences that start at ``(rows, envs)``, time-major.

    Args:
        state: ring of ``SampleBatch`` with ``dones`` and a dict of ``extras``.
        rows: filled rows of the ring, ``[N]``.
        envs: global environment indices, ``[N]``.
        num_envs: number of environments over all devices.
        length: steps T of a sequence.

    Returns:
        Fields ``[T, N, ...]``; ``extras.recurrent_state``, if stored, is the state before the first step, ``[N, ...]``.
        ``extras`` also has two bools ``[T, N]``: ``mask``, True for stored steps (others have arbitrary values), and
        ``starts``, True where an episode starts, except at the first step, whose recurrent state is returned.
    """
    num_rows = jax.tree.leaves(state.data)[0].shape[0]
    extras = state.data.extras
    recurrent_state = {
        name: take(extras[name], rows, envs, num_envs) for name in ("recurrent_state",) if name in extras
    }
    others = type(extras)({name: value for name, value in extras.items() if name != "recurrent_state"})
    steps = jnp.arange(length, dtype=jnp.int32)[:, None]  # [T, 1]
    window = (rows + steps) % num_rows  # [T, N]
    batch = take(state.data.replace(extras=others), window, jnp.broadcast_to(envs, window.shape), num_envs)
    starts = jnp.concatenate([jnp.zeros((1, *rows.shape), jnp.bool_), batch.dones.astype(jnp.bool_)[:-1]])
    mask = steps < state.size - _age(state, rows)
    return batch.replace(extras=batch.extras | recurrent_state | {"mask": mask, "starts": starts})


class SequenceReplayBuffer(UniformReplayBuffer):
    """Ring of the latest transitions that samples starts of complete sequences uniformly, with replacement.

    While no complete sequence is stored, samples start at the oldest step; see ``mask`` of ``take_sequences``.

    Attributes:
        length: number of steps of a sequence.
        period: steps of an environment between two starts (half the length in Kapturowski et al. 2019, section 2.3);
            the number of rows is rounded up to a multiple of ``period``.
    """

    length: int = 1
    period: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1 or self.period < 1:
            raise ValueError(f"sequences need length and period >= 1, got length={self.length}, period={self.period}.")
        if self.length + self.period - 1 > self.num_rows:
            raise ValueError(
                f"sequences of {self.length} steps that start every {self.period} steps do not fit into the "
                f"{self.num_rows} steps of each environment that replay_capacity={self.capacity} holds: raise "
                "replay_capacity, or decrease burn_in, sequence_length or sequence_period."
            )

    @property
    def num_rows(self) -> int:
        return -(-super().num_rows // self.period) * self.period

    def draw_indices(self, state: ReplayState, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """Sample ``(rows, envs)`` of the starts of ``num`` sequences, int32 ``[num]`` each, uniformly."""
        flat = jax.random.randint(as_typed_key(key), (num,), 0, jnp.maximum(self.num_choices(state), 1))
        rows = (self._first_start(state) + flat // self.num_envs * self.period) % self.num_rows
        return rows, flat % self.num_envs

    def num_choices(self, state: ReplayState) -> jax.Array:
        last = state.cursor - self.length
        return jnp.maximum((last - self._first_start(state)) // self.period + 1, 0) * self.num_envs

    def _first_start(self, state: ReplayState) -> jax.Array:
        """Return the oldest row at which a sequence starts; rows before the last wrap-around count as negative."""
        oldest = state.cursor - state.size
        return -(-oldest // self.period) * self.period

    def is_start(self, state: ReplayState, rows: jax.Array) -> jax.Array:
        """Return True, elementwise, where a complete sequence starts at ``rows``."""
        return (_age(state, rows) + self.length <= state.size) & (rows % self.period == 0)


class PrioritizedSequenceReplayBuffer(PrioritizedReplayBuffer, SequenceReplayBuffer):
    """Ring of the latest transitions that samples starts of complete sequences with replacement, by priority.

    A sequence gets the largest priority so far when its last step is added, and 0 when its first step is overwritten.
    """

    def add(self, state: Any, batch: Any, mask: jax.Array | None = None) -> PrioritizedReplayState:
        num_new = jax.tree.leaves(batch)[0].shape[0]
        _, added = rows_to_write(state, num_new, mask)
        new_state = add_rows(state, batch, mask)
        # Starts that become valid or invalid: from the first incomplete sequence up to the newest row.
        steps = jnp.arange(num_new + self.length - 1, dtype=jnp.int32)
        rows = (state.cursor - self.length + 1 + steps) % self.num_rows
        weights = jnp.where(self.is_start(new_state, rows), state.greatest, 0.0)[:, None]
        indices = rows[:, None] * self.num_envs + jnp.arange(self.num_envs, dtype=jnp.int32)
        indices = jnp.where((steps < self.length - 1 + added)[:, None], indices, DROPPED)
        weights = jnp.broadcast_to(weights, indices.shape).reshape(-1)
        return new_state.replace(priorities=set_weights(state.priorities, indices.reshape(-1), weights))


def sequence_buffer(workflow: Any) -> SequenceReplayBuffer:
    """Return the buffer of an off-policy workflow, for sequences of ``burn_in + sequence_length`` steps."""
    fields = {"capacity": workflow.replay_capacity, "num_envs": workflow.num_stored_envs}
    fields |= {"length": (workflow.burn_in or 0) + workflow.sequence_length, "period": workflow.sequence_period}
    if not workflow.prioritized:
        return SequenceReplayBuffer(**fields)
    return PrioritizedSequenceReplayBuffer(**fields, exponent=workflow.priority_exponent)


def sequence_priorities(errors: jax.Array, mix: jax.Array | float, axis: int = 0) -> jax.Array:
    """Return priorities of sequences: ``mix max |error| + (1 - mix) mean |error|`` over the time axis.

    Kapturowski et al. 2019, section 2.3, use a mix of 0.9.
    """
    magnitudes = jnp.abs(errors)
    return mix * magnitudes.max(axis=axis) + (1.0 - mix) * magnitudes.mean(axis=axis)


def _age(state: ReplayState, rows: jax.Array) -> jax.Array:
    return (rows - (state.cursor - state.size)) % jax.tree.leaves(state.data)[0].shape[0]


def with_swapped_axes(batch: SampleBatch) -> SampleBatch:
    """Swap the first two axes of sequences ``[T, N, ...]``; entries with one value per sequence are unchanged."""
    one_each = {name: x for name, x in batch.extras.items() if name in ("recurrent_state", "weights")}
    others = PyTreeDict({name: x for name, x in batch.extras.items() if name not in one_each})
    swapped = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch.replace(extras=others))
    return swapped.replace(extras=swapped.extras | one_each)
