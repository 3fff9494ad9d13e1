"""Trajectory data: transitions in batches, and episodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.trees import flatten_leading_axes
from evorl.types import PyTreeData


class SampleBatch(PyTreeData):
    """Transitions with any leading axes, ``[T, B, ...]`` from a rollout; fields that are not needed stay ``None``.

    At time t of an environment: the agent saw ``obs``, did ``actions``, got ``rewards`` and came to ``next_obs`` (the
    true successor, also where the episode ended), and ``dones`` says whether the episode ended with that step.

    Attributes:
        obs: ``[..., *observation]``, an array or a pytree of arrays.
        actions: ``[..., *action]``.
        rewards: ``[...]``, or a dict of such.
        next_obs: as ``obs``.
        dones: ``[...]``.
        extras: other information by name, leaves ``[..., *]``.
    """

    obs: Any = None
    actions: Any = None
    rewards: Any = None
    next_obs: Any = None
    dones: Any = None
    extras: Any = None

    def __len__(self) -> int:
        """The length of the first axis; 0 without data."""
        leaves = jax.tree.leaves(self)
        return leaves[0].shape[0] if leaves else 0

    def __getitem__(self, index: Any) -> SampleBatch:
        """The same indexing applied to every leaf: rows, slices, integer or mask arrays."""
        return jax.tree.map(lambda x: x[index], self)

    __iter__ = None  # without it, iteration would index past the end for ever

    def flatten(self, num_axes: int = 2) -> SampleBatch:
        """Time and environments joined to one axis: ``[T, B, ...] -> [T * B, ...]``."""
        return flatten_leading_axes(self, num_axes)


class Episode(PyTreeData):
    """One episode in a window of fixed length, or a batch of them; what follows its end is padding.

    Attributes:
        trajectory: ``[T, ...]``, time first; ``dones`` must be present.
    """

    trajectory: SampleBatch

    @property
    def valid_mask(self) -> jax.Array:
        """bool ``[T, ...]``: the steps up to and including the first end."""
        return valid_mask(_present(self.trajectory.dones, "dones"))

    @property
    def length(self) -> jax.Array:
        """Number of steps, int32 ``[...]``."""
        return jnp.sum(self.valid_mask, axis=0, dtype=jnp.int32)

    @property
    def episode_return(self) -> jax.Array:
        """Undiscounted sum of rewards, ``[...]``."""
        rewards = _present(self.trajectory.rewards, "rewards")
        return jax.tree.map(lambda r: jnp.sum(jnp.where(self.valid_mask, r, 0.0), axis=0), rewards)


def valid_mask(dones: jax.Array) -> jax.Array:
    """bool ``[T, ...]``: the steps of the first episode, its last one included."""
    ended = jnp.cumsum(dones.astype(jnp.int32), axis=0)
    return (ended - dones.astype(jnp.int32)) == 0


def first_episodes(dones: jax.Array, num_episodes: int, env_ids: jax.Array, num_envs: int) -> jax.Array:
    """bool ``[T, B]``: the steps of the first ``num_episodes`` episodes of a window, turn by turn.

    The first episode of every environment counts, then the second of every one, and so on: which ones are chosen does
    not depend on how long they are. Those that the window cuts are not left out.

    Args:
        dones: ``[T, B]``.
        num_episodes: over all environments.
        env_ids: numbers of these environments among all, ``[B]``.
        num_envs: how many there are in all.
    """
    ended = dones.astype(jnp.int32)
    turn = jnp.cumsum(ended, axis=0) - ended
    return turn * num_envs + env_ids < num_episodes


def _present(field: Any, name: str) -> Any:
    if field is None:
        raise ValueError(f"this SampleBatch has no {name!r}: collect it with the rollout.")
    return field
