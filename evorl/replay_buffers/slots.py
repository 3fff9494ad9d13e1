"""Whole episodes, each in a slot of its own: a new one takes the place of one drawn at random, not of the oldest.

Storage leaves are ``[T, S, ...]``: T steps of S slots. Each environment has as many slots, side by side, and writes
into one of them until its episode has ended. So what is overwritten depends neither on other environments nor on the
devices they are on, and an episode that still runs keeps its beginning.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.collectives import local_indices
from evorl.ops.random import per_row, unrolled
from evorl.replay_buffers.episode import EpisodeSpan, draw_in_runs, times_in_batch
from evorl.replay_buffers.ring import DROPPED, ReplayState, check_batch, init_ring, take
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key


class SlotReplayState(ReplayState):
    """The contents of slots: leaves of ``data`` are ``[T, S, ...]``, those of an environment side by side.

    Of the fields of a ring ``cursor``, int32 ``[1, B]``, is the last slot that each environment has opened, counted
    among its own, and ``size``, int32 ``[1, S]``, how many steps each slot has.

    Attributes:
        running: steps that the episode in that slot has, int32 ``[1, B]``; 0 where the next step opens another slot.
        num_added: steps of each environment that were ever added, int32 scalar.
        keys: of each environment, from which its slots are drawn, ``[1, B]``.
    """

    running: jax.Array
    num_added: jax.Array
    keys: Key

    def num_from(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> jax.Array:
        """How many steps of a slot are stored from those at ``(rows, envs)`` on; see ``ring.take``."""
        return take(self.size, jnp.zeros_like(envs), envs, num_envs) - rows

    def span(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> EpisodeSpan:
        """The episodes of the steps at ``(rows, envs)``, each of which starts in the first row.

        Args:
            rows: ``[...]``, filled rows.
            envs: ``[...]``, global numbers of slots.
            num_envs: number of environments over all devices.
        """
        start = jnp.zeros_like(rows)
        length = self.num_from(start, envs, num_envs)
        return EpisodeSpan(step=rows, start=start, end=length - 1, length=length)


class SlotReplayBuffer(UniformReplayBuffer):
    """Slots of an episode each, overwritten at random, and drawn uniformly: an episode in proportion to its length.

    When an environment starts an episode, it opens the next of its slots that is still empty, and once there is none
    any other than its last, all equally likely. What is stored are ``SampleBatch`` with ``dones``; the first step of
    each environment starts an episode. One that is longer than a slot goes on in another, as if it were a new one.

    Attributes:
        episode_steps: room of a slot, T: the most steps that an episode has. As many slots are kept as the capacity has
            whole ones, the same number for each environment.
    """

    episode_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episode_steps < 1:
            raise ValueError(f"a slot has room for at least one step, got episode_steps={self.episode_steps}.")
        if self.slots_per_env < 2:
            least = 2 * self.num_envs * self.episode_steps
            raise ValueError(
                f"a slot has room for T={self.episode_steps:,} steps, the time limit of episodes; a replay capacity of "
                f"{self.capacity:,} has room for {self.capacity // self.episode_steps:,} of them, and with num_envs="
                f"{self.num_envs} each environment needs 2: for the episode that runs, and for one that is kept. "
                f"Choose a capacity of {least} or more, or a shorter time limit."
            )

    @property
    def slots_per_env(self) -> int:
        """Slots of each environment."""
        return self.capacity // self.episode_steps // self.num_envs

    @property
    def num_rows(self) -> int:
        """Steps of each environment that there is room for."""
        return self.slots_per_env * self.episode_steps

    def init(self, sample_spec: Any, key: Key | None = None) -> SlotReplayState:
        """An empty buffer for transitions like ``sample_spec``: one transition of one environment, no leading axes.

        Args:
            sample_spec: arrays, numbers or ``jax.ShapeDtypeStruct``.
            key: of all draws of slots.

        Raises:
            ValueError: there is no key.
        """
        if key is None:
            raise ValueError("which slots are overwritten is drawn: give init a key, init(sample_spec, key).")
        own = 0 if self.num_envs == 1 else local_indices(self.num_envs)
        keys = jax.random.split(key, self.num_envs)[own].reshape(1, -1)
        none = jnp.zeros(keys.shape, jnp.int32)
        ring = init_ring(self.episode_steps, self.num_envs, sample_spec, self.slots_per_env)
        return SlotReplayState(
            data=ring.data,
            cursor=none + self.slots_per_env - 1,  # so that the first is the next
            size=jnp.zeros((1, keys.size * self.slots_per_env), jnp.int32),
            running=none,
            num_added=ring.size,
            keys=keys,
        )

    def add(self, state: Any, batch: Any, mask: jax.Array | None = None) -> SlotReplayState:
        """The buffer with ``batch`` added, leaves ``[L, B, ...]``; only the steps of ``mask``, bool ``[L]``."""
        num_new, num_envs = batch.dones.shape[0], state.cursor.shape[1]
        shape = (self.num_rows, num_envs)
        check_batch(jax.tree.map(lambda x: jax.ShapeDtypeStruct((*shape, *x.shape[2:]), x.dtype), state.data), batch)
        is_written = jnp.broadcast_to(True if mask is None else mask, (num_new,))[:, None]
        dones = batch.dones.astype(jnp.bool_) & is_written
        time, starts = times_in_batch(dones, is_written, state.running[0])
        rows = (time - starts[:-1]) % self.episode_steps  # [L, B]
        opens = is_written & (rows == 0)
        columns = self._slots_opened(state, opens, time)
        own_columns = jnp.arange(num_envs, dtype=jnp.int32) * self.slots_per_env + columns  # [L, B]
        # Of a slot that is opened twice only what it gets the last time is written: each place once.
        opened_at, never = time - rows, -self.episode_steps
        opened = jnp.where(opens, own_columns, DROPPED)
        last = jnp.full(state.size.shape[1], never, jnp.int32).at[opened].max(opened_at, mode="drop")
        stays = is_written & (opened_at >= last[own_columns])
        kept_rows = jnp.where(stays, rows, DROPPED)
        size = jnp.where(last == never, state.size[0], 0).at[jnp.where(stays, own_columns, DROPPED)].add(1, mode="drop")
        added = time[-1] + 1
        return state.replace(
            data=jax.tree.map(lambda x, new: x.at[kept_rows, own_columns].set(new, mode="drop"), state.data, batch),
            cursor=columns[-1:],
            size=size[None],
            running=(added - starts[-1:]) % self.episode_steps,
            num_added=state.num_added + added[0],
        )

    def _slots_opened(self, state: SlotReplayState, opens: jax.Array, time: jax.Array) -> jax.Array:
        """The slots among its own that each environment writes into, int32 ``[L, B]``.

        Args:
            state: before.
            opens: whether a step opens a slot, bool ``[L, B]``.
            time: of the step since ``state``, int32 ``[L, 1]``.
        """
        used = (state.size > 0).reshape(-1, self.slots_per_env).sum(axis=1, dtype=jnp.int32)
        has_empty = used + jnp.cumsum(opens, axis=0) <= self.slots_per_env
        keys, numbers = jnp.broadcast_arrays(unrolled(state.keys), state.num_added + time)
        keys = per_row(jax.random.fold_in, keys, numbers)  # the numbers of steps: no key twice
        others = per_row(lambda key: jax.random.randint(key, (), 1, self.slots_per_env), keys)
        steps = jnp.where(opens, jnp.where(has_empty, 1, others), 0)
        return jax.lax.associative_scan(
            lambda a, b: (a + b) % self.slots_per_env, jnp.concatenate([state.cursor, steps])
        )[1:]

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """``(rows, slots)`` of ``num`` steps, int32 ``[num]`` each, with replacement."""
        slots, rows = draw_in_runs(self._over_devices(state.size[0]), key, num)
        return rows, slots

    def num_transitions(self, state: Any) -> jax.Array:
        """How many transitions are stored over all devices, int32 scalar."""
        return self._over_devices(state.size[0]).sum()
