"""Uniform replay (Lin 1992; Mnih et al. 2015): every stored transition is equally likely to be drawn."""

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
    """A ring of the latest transitions, drawn uniformly with replacement.

    The state is outside (``init`` makes it) and every method is pure. Another buffer replaces ``draw_indices``.

    Attributes:
        capacity: number of transitions over all environments; rounded up to whole rows of ``num_envs``.
        num_envs: number of parallel environments over all devices.
    """

    capacity: int
    num_envs: int = 1

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ValueError(f"a replay buffer needs at least one environment, got num_envs={self.num_envs}.")
        if not self.num_envs <= self.capacity < 2**31:
            raise ValueError(
                f"the replay capacity must be at least num_envs={self.num_envs} and below 2^31, got {self.capacity}."
            )

    @property
    def num_rows(self) -> int:
        """Rows of the ring: steps of time that are kept."""
        return -(-self.capacity // self.num_envs)

    def num_bytes(self, sample_spec: Any) -> int:
        """Memory the ring will take over all devices, before it is allocated."""
        spec = jax.eval_shape(lambda tree: tree, sample_spec)
        row = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec))
        return row * self.num_rows * self.num_envs

    def init(self, sample_spec: Any) -> ReplayState:
        """An empty buffer for transitions like ``sample_spec``: one transition of one environment, no leading axes."""
        return init_ring(self.num_rows, self.num_envs, sample_spec)

    def add(self, state: ReplayState, batch: Any, mask: jax.Array | None = None) -> ReplayState:
        """The buffer with ``batch`` added, leaves ``[T, B, ...]``; see ``ring.add_rows``."""
        return add_rows(state, batch, mask)

    def draw_indices(self, state: ReplayState, key: Key, num: int) -> tuple[jax.Array, jax.Array]:
        """The strategy: ``(rows, envs)`` of ``num`` transitions, int32 ``[num]`` each, with replacement."""
        flat = jax.random.randint(as_typed_key(key), (num,), 0, jnp.maximum(state.size, 1) * self.num_envs)
        return flat // self.num_envs, flat % self.num_envs

    def sample(self, state: ReplayState, key: Key, batch_size: int) -> Any:
        """``batch_size`` transitions, leaves ``[batch_size, ...]``; zeros from a buffer that is still empty."""
        rows, envs = self.draw_indices(state, key, batch_size)
        return take(state.data, rows, envs, self.num_envs)

    def num_transitions(self, state: ReplayState) -> jax.Array:
        """How many transitions are stored over all devices, int32 scalar."""
        return state.size * self.num_envs

    def num_choices(self, state: ReplayState) -> jax.Array:
        """How many different draws there are over all devices, int32 scalar."""
        return self.num_transitions(state)

    def _over_devices(self, of_envs: Tree) -> Tree:
        """Rows of this device's environments, put together; a single environment is whole on each device."""
        return of_envs if self.num_envs == 1 else gather_rows(of_envs)
