"""Combined experience replay (Zhang & Sutton 2017, https://arxiv.org/abs/1712.01275): samples include new steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key


class CombinedReplayBuffer(UniformReplayBuffer):
    """Ring of the latest transitions: sample i is the newest of environment i for i < num_envs; the rest is uniform."""

    def draw_indices(self, state: ReplayState, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        rows, envs = super().draw_indices(state, key, num)
        numbers, newest_row = jnp.arange(num, dtype=jnp.int32), (state.cursor - 1) % self.num_rows
        is_newest = numbers < self.num_envs
        return jnp.where(is_newest, newest_row, rows), jnp.where(is_newest, numbers, envs)
