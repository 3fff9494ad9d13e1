"""Replay buffer with one slot per episode: if no slot is empty, a new episode overwrites a random one, not the oldest.

Storage leaves are ``[T, S, ...]``: T steps of S slots. Each environment has the same number of adjacent slots, and
writes into one of them until its episode ends or the slot is full. The choice of the overwritten episode therefore
depends neither on other environments nor on devices, and the slot of a running episode is not overwritten.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from evorl.ops.collectives import local_indices
from evorl.ops.random import per_row, unrolled
from evorl.replay_buffers.episode import EpisodeSpan, draw_in_runs, times_in_batch
from evorl.replay_buffers.ring import DROPPED, ReplayState, check_batch, init_ring, take
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key


class SlotReplayState(ReplayState):
    """State of a slot buffer: leaves of ``data`` are ``[T, S, ...]``, with adjacent slots for each environment.

    Two fields differ from a ring's: ``cursor``, int32 ``[1, B]``, is the slot that each environment opened
    last, as an index among its slots; ``size``, int32 ``[1, S]``, is the number of steps in each slot.

    Attributes:
        running: steps of the running episode in slot ``cursor``, int32 ``[1, B]``; 0 if the next step opens a slot.
        num_added: number of steps added so far per environment, int32 scalar.
        keys: random key of each environment for the choice of its slots, ``[1, B]``.
    """

    running: jax.Array
    num_added: jax.Array
    keys: Key

    def num_from(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> jax.Array:
        """Return the number of stored steps of slots ``envs`` from ``rows`` on; arguments are as for ``ring.take``."""
        return take(self.size, jnp.zeros_like(envs), envs, num_envs) - rows

    def span(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> EpisodeSpan:
        """Return the positions of the steps at ``(rows, envs)`` in their episodes; every episode starts in row 0.

        Args:
            rows: filled rows, ``[...]``.
            envs: global slot indices, ``[...]``.
            num_envs: number of environments over all devices.
        """
        start = jnp.zeros_like(rows)
        length = self.num_from(start, envs, num_envs)
        return EpisodeSpan(step=rows, start=start, end=length - 1, length=length)

    def end_episodes(self, mask: Any) -> Self:
        return self.replace(running=jnp.where(mask, 0, self.running))


class SlotReplayBuffer(UniformReplayBuffer):
    """Replay buffer with one episode per slot: evicts random episodes, and samples all stored steps uniformly.

    At the start of an episode, an environment opens its next empty slot; if no slot is empty, it overwrites a random
    one, except its latest. Transitions are ``SampleBatch`` with ``dones``; the first step of each environment
    starts an episode. An episode longer than a slot continues in another slot, as if it were a new episode.

    Attributes:
        episode_steps: slot size T, usually the time limit of episodes. Each environment has
            ``capacity // T // num_envs`` slots.
    """

    episode_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episode_steps < 1:
            raise ValueError(f"episode_steps, the size of a slot, must be at least 1, got {self.episode_steps}.")
        if self.slots_per_env < 2:
            smallest = 2 * self.num_envs * self.episode_steps
            raise ValueError(
                f"a slot holds T={self.episode_steps:,} steps, the time limit of episodes; replay_capacity="
                f"{self.capacity} has {self.capacity // self.episode_steps:,} slots, but with num_envs="
                f"{self.num_envs} each environment needs 2: one for the running episode, and one for a stored episode. "
                f"Choose replay_capacity={smallest} or more, or a shorter time limit (env.max_episode_steps)."
            )

    @property
    def slots_per_env(self) -> int:
        """Number of slots per environment."""
        return self.capacity // self.episode_steps // self.num_envs

    @property
    def num_rows(self) -> int:
        return self.slots_per_env * self.episode_steps

    def init(self, sample_spec: Any, key: Key | None = None) -> SlotReplayState:
        """Return an empty buffer; raise ``ValueError`` without ``key``, a random key for the choice of slots."""
        if key is None:
            raise ValueError("init needs a key to draw slots at random: call init(sample_spec, key).")
        local = 0 if self.num_envs == 1 else local_indices(self.num_envs)
        keys = jax.random.split(key, self.num_envs)[local].reshape(1, -1)
        zeros = jnp.zeros(keys.shape, jnp.int32)
        ring = init_ring(self.episode_steps, self.num_envs, sample_spec, self.slots_per_env)
        return SlotReplayState(
            data=ring.data,
            cursor=zeros + self.slots_per_env - 1,  # so that the first slot is opened next
            size=jnp.zeros((1, keys.size * self.slots_per_env), jnp.int32),
            running=zeros,
            num_added=ring.size,
            keys=keys,
        )

    def add(self, state: Any, batch: Any, mask: jax.Array | None = None) -> SlotReplayState:
        """Add the steps of ``batch``, leaves ``[L, B, ...]``, where ``mask``, bool ``[L]``, is True (``None``: all)."""
        num_new, num_envs = batch.dones.shape[0], state.cursor.shape[1]
        shape = (self.num_rows, num_envs)
        check_batch(jax.tree.map(lambda x: jax.ShapeDtypeStruct((*shape, *x.shape[2:]), x.dtype), state.data), batch)
        is_written = jnp.broadcast_to(True if mask is None else mask, (num_new,))[:, None]
        dones = batch.dones.astype(jnp.bool_) & is_written
        time, starts = times_in_batch(dones, is_written, state.running[0])
        rows = (time - starts[:-1]) % self.episode_steps  # [L, B]
        opens = is_written & (rows == 0)
        columns = self._slots_opened(state, opens, time)
        slot_columns = jnp.arange(num_envs, dtype=jnp.int32) * self.slots_per_env + columns  # [L, B]
        # If a slot is opened twice, only the later episode is written, so that no entry is written twice.
        opened_at, never = time - rows, -self.episode_steps
        opened = jnp.where(opens, slot_columns, DROPPED)
        last = jnp.full(state.size.shape[1], never, jnp.int32).at[opened].max(opened_at, mode="drop")
        stays = is_written & (opened_at >= last[slot_columns])
        stored_rows = jnp.where(stays, rows, DROPPED)
        sizes = jnp.where(last == never, state.size[0], 0)
        size = sizes.at[jnp.where(stays, slot_columns, DROPPED)].add(1, mode="drop")
        added = time[-1] + 1
        return state.replace(
            data=jax.tree.map(lambda x, new: x.at[stored_rows, slot_columns].set(new, mode="drop"), state.data, batch),
            cursor=columns[-1:],
            size=size[None],
            running=(added - starts[-1:]) % self.episode_steps,
            num_added=state.num_added + added[0],
        )

    def _slots_opened(self, state: SlotReplayState, opens: jax.Array, time: jax.Array) -> jax.Array:
        """Return the slot that each environment writes to at each step, as an index among its slots, int32 ``[L, B]``.

        Args:
            state: state before the batch.
            opens: True if a step opens a slot, bool ``[L, B]``.
            time: index of each step, from 0 for the first step that is added, int32 ``[L, 1]``.
        """
        used = (state.size > 0).reshape(-1, self.slots_per_env).sum(axis=1, dtype=jnp.int32)
        has_empty = used + jnp.cumsum(opens, axis=0) <= self.slots_per_env
        keys, numbers = jnp.broadcast_arrays(unrolled(state.keys), state.num_added + time)
        keys = per_row(jax.random.fold_in, keys, numbers)  # step indices are unique, so no key repeats
        others = per_row(lambda key: jax.random.randint(key, (), 1, self.slots_per_env), keys)
        steps = jnp.concatenate([state.cursor, jnp.where(opens, jnp.where(has_empty, 1, others), 0)])
        return jax.lax.associative_scan(lambda a, b: (a + b) % self.slots_per_env, steps)[1:]

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        slots, rows = draw_in_runs(self._over_devices(state.size[0]), key, num)
        return rows, slots

    def num_transitions(self, state: Any) -> jax.Array:
        return self._over_devices(state.size[0]).sum()
