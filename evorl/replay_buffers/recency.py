"""Recency-weighted replay: newer transitions are sampled more often."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.random import as_typed_key
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key


class RecencyReplayState(ReplayState):
    """State of a ring buffer that samples newer steps more often.

    Attributes:
        sums: total weight of the k oldest steps of an environment, for k = 0 ... R, float32 ``[R + 1]``.
    """

    sums: jax.Array


class RecencyReplayBuffer(UniformReplayBuffer):
    """Ring of the latest transitions, sampled with replacement in proportion to ``rank ** exponent``.

    In every environment the oldest stored step has rank 1, and the newest has the number of stored steps as rank.

    Attributes:
        exponent: strength of the recency weighting; 0 samples uniformly.
    """

    exponent: float = 1.0

    def init(self, sample_spec: Any) -> RecencyReplayState:
        ring = super().init(sample_spec)
        # Relative to the largest weight, to avoid overflow.
        weights = (jnp.arange(1, self.num_rows + 1) / self.num_rows) ** self.exponent
        sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(weights)])
        return RecencyReplayState(data=ring.data, cursor=ring.cursor, size=ring.size, sums=sums)

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        age_key, env_key = jax.random.split(as_typed_key(key))
        shares = jax.random.uniform(age_key, (num,)) * state.sums[state.size]
        age = jnp.searchsorted(state.sums, shares, side="right") - 1  # counted from the oldest step
        age = jnp.clip(age, 0, jnp.maximum(state.size - 1, 0))
        rows = (state.cursor - state.size + age) % self.num_rows
        return rows.astype(jnp.int32), jax.random.randint(env_key, (num,), 0, self.num_envs)
