"""Uniform replay (Lin 1992; Mnih et al. 2015): every stored transition is sampled with equal probability."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.collectives import gather_rows
from evorl.ops.random import as_typed_key
from evorl.replay_buffers.ring import ReplayState, add_rows, init_ring, take
from evorl.types import Key, PyTreeNode

Tree = TypeVar("Tree")


class UniformReplayBuffer(PyTreeNode):
    """Ring of the latest transitions, sampled uniformly with replacement.

    The state is separate (created by ``init``), and every method is pure. Subclasses override ``draw_indices``.

    Attributes:
        capacity: number of transitions over all environments; rounded up to a multiple of ``num_envs``.
        num_envs: number of parallel environments over all devices.
    """

    capacity: int
    num_envs: int = 1

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ValueError(f"a replay buffer needs at least one environment, got num_envs={self.num_envs}.")
        if not self.num_envs <= self.capacity < 2**31:
            raise ValueError(f"replay_capacity={self.capacity} must be from num_envs={self.num_envs} to 2^31 - 1.")

    @property
    def num_rows(self) -> int:
        """Number of rows of the ring: stored steps per environment."""
        return -(-self.capacity // self.num_envs)

    def num_bytes(self, sample_spec: Any) -> int:
        """Return the size of the ring over all devices, in bytes, without allocating it."""
        spec = jax.eval_shape(lambda tree: tree, sample_spec)
        row = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec))
        return row * self.num_rows * self.num_envs

    def init(self, sample_spec: Any) -> ReplayState:
        """Return an empty buffer; ``sample_spec`` is a transition of one environment, without leading axes."""
        return init_ring(self.num_rows, self.num_envs, sample_spec)

    def add(self, state: ReplayState, batch: Any, mask: jax.Array | None = None) -> ReplayState:
        """Add the steps of ``batch``, leaves ``[T, B, ...]``, where ``mask`` is True; see ``ring.add_rows``."""
        return add_rows(state, batch, mask)

    def draw_indices(self, state: ReplayState, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """Sample ``(rows, envs)`` of ``num`` transitions, int32 ``[num]`` each, with replacement."""
        flat = jax.random.randint(as_typed_key(key), (num,), 0, jnp.maximum(state.size, 1) * self.num_envs)
        return flat // self.num_envs, flat % self.num_envs

    def sample(self, state: ReplayState, key: Key, batch_size: int) -> Any:
        """Sample ``batch_size`` transitions, leaves ``[batch_size, ...]``; zeros if the buffer is empty."""
        rows, envs = self.draw_indices(state, key, batch_size)
        return take(state.data, rows, envs, self.num_envs)

    def num_transitions(self, state: ReplayState) -> jax.Array:
        """Return the number of stored transitions over all devices, int32 scalar."""
        return state.size * self.num_envs

    def num_choices(self, state: ReplayState) -> jax.Array:
        """Return the number of transitions (or sequences) that can be sampled, over all devices, int32 scalar."""
        return self.num_transitions(state)

    def _over_devices(self, local_rows: Tree) -> Tree:
        """Return the rows of all devices' environments, concatenated; rows of a single environment are replicated."""
        return local_rows if self.num_envs == 1 else gather_rows(local_rows)
