"""Trajectory data: batches of transitions, and episodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops.trees import flatten_leading_axes
from evorl.types import PyTreeData


class SampleBatch(PyTreeData):
    """Transitions with any leading axes, ``[T, B, ...]`` from a rollout; unused fields are ``None``.

    At each step, the agent observes ``obs``, takes ``actions``, and receives ``rewards`` and ``next_obs``.

    Attributes:
        obs: observations before the step, ``[..., *observation]``, an array or a pytree of arrays.
        actions: actions, ``[..., *action]``.
        rewards: rewards, ``[...]``, or a dict of arrays ``[...]``.
        next_obs: observations after the step, like ``obs``; the true successor, even if the episode ended.
        dones: True if the episode ended with the step, for any reason, ``[...]``.
        extras: additional data by name, leaves ``[..., *]``.
    """

    obs: Any = None
    actions: Any = None
    rewards: Any = None
    next_obs: Any = None
    dones: Any = None
    extras: Any = None

    def __len__(self) -> int:
        """Return the length of the first axis; 0 without data."""
        leaves = jax.tree.leaves(self)
        return leaves[0].shape[0] if leaves else 0

    def __getitem__(self, index: Any) -> SampleBatch:
        """Return a batch with every leaf indexed by a slice, an integer, an integer array or a mask."""
        return jax.tree.map(lambda x: x[index], self)

    __iter__ = None  # without it, iteration would index past the end forever

    def flatten(self, num_axes: int = 2) -> SampleBatch:
        """Merge the first ``num_axes`` axes, by default time and environments: ``[T, B, ...] -> [T * B, ...]``."""
        return flatten_leading_axes(self, num_axes)


class Episode(PyTreeData):
    """One episode in a window of T steps, or a batch of episodes; steps after the end are padding.

    Attributes:
        trajectory: transitions, leaves ``[T, ...]``; ``dones`` must be present.
    """

    trajectory: SampleBatch

    @property
    def valid_mask(self) -> jax.Array:
        """Mask, bool ``[T, ...]``, True for all steps up to and including the first end of an episode."""
        return valid_mask(_present(self.trajectory.dones, "dones"))

    @property
    def length(self) -> jax.Array:
        """Number of steps, int32 ``[...]``."""
        return jnp.sum(self.valid_mask, axis=0, dtype=jnp.int32)

    @property
    def episode_return(self) -> jax.Array:
        """Undiscounted sum of the rewards of the episode, ``[...]``, or a dict of sums."""
        rewards = _present(self.trajectory.rewards, "rewards")
        return jax.tree.map(lambda r: jnp.sum(jnp.where(self.valid_mask, r, 0.0), axis=0), rewards)


def valid_mask(dones: jax.Array) -> jax.Array:
    """Return a mask, bool ``[T, ...]``, True for the steps of the first episode, including its last step."""
    ended = jnp.cumsum(dones.astype(jnp.int32), axis=0)
    return (ended - dones.astype(jnp.int32)) == 0


def first_episodes(dones: jax.Array, num_episodes: int, env_ids: jax.Array, num_envs: int) -> jax.Array:
    """Return a mask, bool ``[T, B]``, True for the steps of the first ``num_episodes`` episodes of a window.

    Episodes are counted in rounds: the first episode of every environment, then the second of every environment, and
    so on. The selection therefore does not depend on episode lengths. Unfinished episodes at the end are included.

    Args:
        dones: True where an episode ended, ``[T, B]``.
        num_episodes: number of episodes over all environments of all devices.
        env_ids: global indices of these B environments, int ``[B]``.
        num_envs: number of environments of all devices.
    """
    ended = dones.astype(jnp.int32)
    episode_index = jnp.cumsum(ended, axis=0) - ended
    return episode_index * num_envs + env_ids < num_episodes


def _present(field: Any, name: str) -> Any:
    if field is None:
        raise ValueError(f"this SampleBatch has no {name!r}, which an Episode needs: record {name} in the rollout.")
    return field
