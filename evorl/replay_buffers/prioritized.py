"""Prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952): transitions with larger TD errors are
sampled more often.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.random import as_typed_key
from evorl.ops.sum_tree import SumTree, get_weights, init_sum_tree, sample_indices, set_weights
from evorl.replay_buffers.ring import DROPPED, ReplayState, add_rows, init_ring, rows_to_write
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.types import Key

_LEAST = 1e-6  # added to every error, so that every transition has a nonzero probability


class PrioritizedReplayState(ReplayState):
    """State of a ring buffer with sampling priorities.

    Attributes:
        priorities: sum tree of ``priority ** exponent`` at index ``row * B + env``; identical on all devices.
        greatest: largest ``priority ** exponent`` so far, initially 1, float32 scalar; assigned to new transitions.
    """

    priorities: SumTree
    greatest: jax.Array


class PrioritizedReplayBuffer(UniformReplayBuffer):
    """Ring of the latest transitions, sampled with replacement in proportion to ``priority ** exponent`` (eq. 1).

    Attributes:
        exponent: prioritization exponent alpha; 0 samples uniformly.
    """

    exponent: float = 0.6

    def init(self, sample_spec: Any) -> PrioritizedReplayState:
        ring = init_ring(self.num_rows, self.num_envs, sample_spec)
        return PrioritizedReplayState(
            **vars(ring), priorities=init_sum_tree(self.num_rows * self.num_envs), greatest=jnp.ones(())
        )

    def add(self, state: Any, batch: Any, mask: jax.Array | None = None) -> PrioritizedReplayState:
        """Add the steps of ``batch``, ``[T, B, ...]``, with the largest priority so far, see ``ring.add_rows``."""
        rows, _ = rows_to_write(state, jax.tree.leaves(batch)[0].shape[0], mask)
        indices = rows[:, None] * self.num_envs + jnp.arange(self.num_envs, dtype=jnp.int32)
        indices = jnp.where(rows[:, None] == DROPPED, DROPPED, indices).reshape(-1)
        priorities = set_weights(state.priorities, indices, state.greatest)
        return add_rows(state, batch, mask).replace(priorities=priorities)

    def draw_indices(self, state: Any, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """Sample ``(rows, envs)`` of transitions, int32 ``[num]`` each, in proportion to ``priority ** exponent``."""
        index = sample_indices(state.priorities, as_typed_key(key), num)
        return index // self.num_envs, index % self.num_envs

    def importance_weights(
        self, state: PrioritizedReplayState, rows: jax.Array, envs: jax.Array, exponent: jax.Array | float
    ) -> jax.Array:
        """Return ``(1 / (N P(i))) ** exponent`` of sampled transitions (section 3.4), shaped as ``rows``.

        The caller, which forms the batches, has to divide the weights by their maximum in a batch, as in the paper.
        """
        probability = get_weights(state.priorities, rows * self.num_envs + envs) / state.priorities.total
        return (self.num_choices(state) * probability) ** -exponent

    def set_priorities(
        self,
        state: PrioritizedReplayState,
        rows: jax.Array,
        envs: jax.Array,
        errors: jax.Array,
        mask: jax.Array | bool = True,
    ) -> PrioritizedReplayState:
        """Set the priorities of sampled transitions to ``|errors| + 1e-6`` where ``mask`` is True.

        ``rows``, ``envs``, ``errors`` and an array ``mask`` have the same shape and are equal on all devices of a mesh.
        """
        raised = (jnp.abs(errors) + _LEAST) ** self.exponent
        indices = jnp.where(mask, rows * self.num_envs + envs, DROPPED)
        greatest = jnp.maximum(state.greatest, jnp.where(mask, raised, 0.0).max())
        priorities = set_weights(state.priorities, indices.reshape(-1), raised.reshape(-1))
        return state.replace(priorities=priorities, greatest=greatest)
