"""Replay by recency: the newer a transition, the more often it is drawn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.random import as_typed_key
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key


class RecencyReplayState(ReplayState):
    """The contents of a ring, and what is drawn from.

    Attributes:
        sums: of the weights of the k oldest steps, float32 ``[R + 1]`` for k from 0 on.
    """

    sums: jax.Array


class RecencyReplayBuffer(UniformReplayBuffer):
    """A ring of the latest transitions, drawn with replacement in proportion to ``rank ** exponent``.

    The oldest stored step of all environments has rank 1, the newest as many as steps are stored.

    Attributes:
        exponent: how much recency counts: 0 draws uniformly.
    """

    exponent: float = 1.0

    def init(self, sample_spec: Any) -> RecencyReplayState:
        """An empty buffer for transitions like ``sample_spec``: one transition of one environment, no leading axes."""
        ring = super().init(sample_spec)
        # In units of the greatest weight, so that none overflows.
        weights = (jnp.arange(1, self.num_rows + 1) / self.num_rows) ** self.exponent
        sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(weights)])
        return RecencyReplayState(data=ring.data, cursor=ring.cursor, size=ring.size, sums=sums)

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """``(rows, envs)`` of ``num`` transitions, int32 ``[num]`` each, with replacement."""
        age_key, env_key = jax.random.split(as_typed_key(key))
        shares = jax.random.uniform(age_key, (num,)) * state.sums[state.size]
        age = jnp.searchsorted(state.sums, shares, side="right") - 1  # from the oldest on
        age = jnp.clip(age, 0, jnp.maximum(state.size - 1, 0))
        rows = (state.cursor - state.size + age) % self.num_rows
        return rows.astype(jnp.int32), jax.random.randint(env_key, (num,), 0, self.num_envs)
