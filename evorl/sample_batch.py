"""Trajectory data: transitions in batches, episodes, and batches padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chex
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


class PaddedBatch(PyTreeData):
    """Sequences of different lengths in one array.

    Attributes:
        data: leaves ``[N, L, ...]``; zeros where padded.
        mask: bool ``[N, L]``, which entries are data.
    """

    data: Any
    mask: jax.Array


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


def pad_sequences(sequences: Sequence[Any], length: int | None = None) -> PaddedBatch:
    """Pytrees of ``[L_i, ...]`` padded with zeros to ``[N, length, ...]``.

    Args:
        sequences: at least one; the same structure each.
        length: the longest by default.

    Raises:
        ValueError: there is no sequence, or one is longer than ``length``.
    """
    if not sequences:
        raise ValueError("cannot pad an empty list of sequences.")
    lengths = [jax.tree.leaves(sequence)[0].shape[0] for sequence in sequences]
    padded = max(lengths) if length is None else length
    if max(lengths) > padded:
        raise ValueError(f"a sequence of {max(lengths)} steps does not fit into length {padded}.")

    def pad(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, padded - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    data = jax.tree.map(lambda *leaves: jnp.stack([pad(jnp.asarray(leaf)) for leaf in leaves]), *sequences)
    mask = jnp.arange(padded) < jnp.asarray(lengths)[:, None]
    return PaddedBatch(data=data, mask=mask)


def masked_mean(values: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Mean over the entries where ``mask`` holds (all without one); 0 where there are none.

    Args:
        values: ``[...]``; masked entries may hold anything.
        mask: bool of the same shape.
    """
    if mask is None:
        return jnp.mean(values)
    chex.assert_equal_shape([values, mask])
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def _present(field: Any, name: str) -> Any:
    if field is None:
        raise ValueError(f"this SampleBatch has no {name!r}: collect it with the rollout.")
    return field
