"""Ring storage of replay buffers: one row per time step; new rows overwrite the oldest.

Storage leaves are ``[R, B, ...]``: R rows, each with one transition of every environment. A device mesh shards the
environment axis, so a device stores the transitions of its environments, and writing needs no communication. A ring of
a single environment is replicated: every device receives the same rows. Such a ring can store complete episodes of
different lengths consecutively. A buffer is this storage plus a method ``draw_indices``, which samples positions
``(rows, envs)`` in the ring. n-step transitions are assembled from single steps when they are sampled.

The ring is never carried through ``lax.cond``, which may copy all its data: instead, skipped rows have an index out of
range. Writing is a scatter of whole rows, which XLA does in place if the state is donated or carried by a loop.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.collectives import local_indices, num_shards, sum_shards
from evorl.ops.trees import tree_where
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeData

Tree = TypeVar("Tree")
DROPPED = 2**31 - 1  # index beyond every ring: writes to it are dropped


class ReplayState(PyTreeData):
    """State of a ring buffer.

    Attributes:
        data: pytree with leaves ``[R, B, ...]``.
        cursor: row that is written next, int32 scalar.
        size: number of filled rows, int32 scalar, at most R.
    """

    data: Any
    cursor: jax.Array
    size: jax.Array

    def num_from(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> jax.Array:
        """Return the number of stored steps from ``rows`` to the newest row, int32; the same for all ``envs``."""
        num_rows = jax.tree.leaves(self.data)[0].shape[0]
        return (self.cursor - 1 - rows) % num_rows + 1

    def end_episodes(self, mask: Any) -> Self:
        """Return the ring in which the newest step ends its episode as a truncation where ``mask`` ``[B]`` is True.

        Leaves may have leading axes, such as seeds.
        """
        if (dones := getattr(self.data, "dones", None)) is None:
            return self
        is_newest = jnp.arange(dones.shape[-2]) == (self.cursor[..., None] - 1) % dones.shape[-2]
        return self.replace(data=self.data.replace(dones=jnp.where(is_newest[..., None] & mask, True, dones)))


Ring = TypeVar("Ring", bound=ReplayState)


def init_ring(num_rows: int, num_envs: int, sample_spec: Any, num_columns: int = 1) -> ReplayState:
    """Return an empty ring for ``num_envs`` environments; this device stores its share of them.

    Args:
        num_rows: number of rows R.
        num_envs: number of environments B over all devices, a multiple of the number of devices, or 1 (replicated).
        sample_spec: one transition of one environment: arrays, numbers or ``jax.ShapeDtypeStruct``.
        num_columns: number of adjacent columns per environment.
    """
    local = num_columns * (1 if num_envs == 1 else local_indices(num_envs).shape[0])
    spec = jax.eval_shape(lambda tree: tree, sample_spec)
    data = jax.tree.map(lambda leaf: jnp.zeros((num_rows, local, *leaf.shape), leaf.dtype), spec)
    return ReplayState(data=data, cursor=jnp.zeros((), jnp.int32), size=jnp.zeros((), jnp.int32))


def add_rows(state: Ring, batch: Any, mask: jax.Array | None = None) -> Ring:
    """Write the rows of ``batch`` after the newest row.

    Args:
        state: ring.
        batch: leaves ``[T, B, ...]`` with T at most R; T may differ between calls.
        mask: True for rows to write, bool ``[T]`` or scalar; skipped rows leave no gap. Defaults to all.

    Raises:
        ValueError: the batch differs from the ring in structure, shape or dtype, or has more rows.
    """
    check_batch(state.data, batch)
    num_rows = jax.tree.leaves(state.data)[0].shape[0]
    rows, added = rows_to_write(state, jax.tree.leaves(batch)[0].shape[0], mask)

    def write(storage: jax.Array, new: jax.Array) -> jax.Array:
        return storage.at[rows].set(new, mode="drop")

    return state.replace(
        data=jax.tree.map(write, state.data, batch),
        cursor=(state.cursor + added) % num_rows,
        size=jnp.minimum(state.size + added, num_rows),
    )


def rows_to_write(state: ReplayState, num_new: int, mask: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the ring row for each batch row, int32 ``[T]``, ``DROPPED`` if skipped; and the number of written rows."""
    num_rows = jax.tree.leaves(state.data)[0].shape[0]
    is_stored = jnp.broadcast_to(jnp.asarray(True if mask is None else mask, bool), (num_new,))
    position = jnp.cumsum(is_stored.astype(jnp.int32)) - 1  # [T]
    return jnp.where(is_stored, (state.cursor + position) % num_rows, DROPPED), position[-1] + 1


def replace_entries(state: Ring, rows: jax.Array, envs: jax.Array, entries: Any) -> Ring:
    """Replace some entries of the transitions at ``(rows, envs)``, for environments of this device.

    Args:
        state: ring of transitions that are dicts.
        rows: int32 ``[N]``; rows beyond the ring are dropped.
        envs: indices of environments of this device, int32 ``[N]``.
        entries: new values by name, leaves ``[N, ...]``.
    """

    def write(storage: jax.Array, new: jax.Array) -> jax.Array:
        return storage.at[rows, envs].set(new.astype(storage.dtype), mode="drop")

    changed = {name: jax.tree.map(write, state.data[name], new) for name, new in entries.items()}
    return state.replace(data=state.data | changed)


def take(data: Tree, rows: jax.Array, envs: jax.Array, num_envs: int) -> Tree:
    """Return the transitions of ``data`` ``[R, B, ...]`` at ``(rows, envs)``, leaves ``[*rows.shape, ...]``.

    On a mesh, ``envs`` (or columns, if environments have several) are global indices, identical on all devices. Each
    device contributes the transitions that it stores to a sum over devices. If ``num_envs`` is 1, each stores all.
    """
    if num_shards() == 1 or num_envs == 1:
        return jax.tree.map(lambda storage: storage[rows, envs], data)
    num_held = jax.tree.leaves(data)[0].shape[1]
    local_envs = envs - local_indices(num_shards() * num_held)[0]
    is_held = (local_envs >= 0) & (local_envs < num_held)
    local_envs = jnp.clip(local_envs, 0, num_held - 1)

    def contribution(storage: jax.Array) -> jax.Array:
        values = storage[rows, local_envs]
        values = values.astype(jnp.promote_types(values.dtype, jnp.int32)) if _is_small(values.dtype) else values
        return tree_where(is_held, values, jnp.zeros((), values.dtype))

    joined = sum_shards(jax.tree.map(contribution, data))
    return jax.tree.map(lambda value, storage: value.astype(storage.dtype), joined, data)


def _is_small(dtype: Any) -> bool:
    """Return True for bools and short integers, which some backends cannot sum across devices."""
    return dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.dtype(dtype).itemsize < 4)


def check_batch(data: Any, batch: Any) -> None:
    """Raise ``ValueError`` if ``batch`` ``[T, B, ...]`` does not match ``data`` ``[R, B, ...]``, or T exceeds R."""
    if jax.tree.structure(data) != jax.tree.structure(batch):
        raise ValueError(
            "the fields of the batch differ from those of the replay buffer: "
            f"expected {jax.tree.structure(data)}, got {jax.tree.structure(batch)}."
        )
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1:
        raise ValueError(f"the fields of the batch differ in their number of rows: {sorted(lengths)}.")
    for (path, storage), leaf in zip(jax.tree_util.tree_leaves_with_path(data), jax.tree.leaves(batch), strict=True):
        name = jax.tree_util.keystr(path)
        if leaf.shape[1:] != storage.shape[1:] or leaf.dtype != storage.dtype:
            expected = f"{storage.dtype}[{', '.join(map(str, ('T', *storage.shape[1:])))}]"
            raise ValueError(f"{name} of the batch is {leaf.dtype}{list(leaf.shape)}; the buffer expects {expected}.")
        if leaf.shape[0] > storage.shape[0]:
            raise ValueError(
                f"a batch of {leaf.shape[0]} rows does not fit into a replay buffer of {storage.shape[0]} rows: "
                "increase replay_capacity or collect fewer steps at a time."
            )


def take_n_step(
    state: ReplayState, rows: jax.Array, envs: jax.Array, num_envs: int, num_steps: int, discount: jax.Array | float
) -> SampleBatch:
    """Return the n-step transitions that start at ``(rows, envs)`` (Sutton & Barto 2018, section 7.1).

    A transition is shorter where the episode or the stored data ends. Each stored step starts exactly one transition,
    so an episode has as many transitions as steps.

    Args:
        state: ring of ``SampleBatch`` with ``dones`` and ``extras.termination``.
        rows: filled rows of the ring, ``[...]``.
        envs: global environment indices, ``[...]``.
        num_envs: number of environments over all devices.
        num_steps: largest number n of rewards in a transition.
        discount: discount per step.

    Returns:
        ``obs``, ``actions`` and ``extras`` of the first step; ``rewards``, the discounted sum; ``next_obs`` of the last
        step; and in ``extras``, ``num_rewards``, int32, and ``discounts``: ``discount ** num_rewards``, or 0 after a
        termination. ``dones`` is ``None``. Leaves are ``[*rows.shape, ...]``.
    """
    if num_steps == 1:
        batch = take(state.data, rows, envs, num_envs)
        discounts = discount * (1.0 - batch.extras.termination.astype(jnp.float32))
        ones = jnp.ones(rows.shape, jnp.int32)
        return batch.replace(dones=None, extras=batch.extras | {"num_rewards": ones, "discounts": discounts})
    first = take(state.data.replace(next_obs=None, rewards=None, dones=None), rows, envs, num_envs)
    window_rows, window_envs, is_stored = window_from(state, rows, envs, num_envs, num_steps)
    rewards, dones = take((state.data.rewards, state.data.dones), window_rows, window_envs, num_envs)
    rewards, num_rewards = discounted_sum(rewards, dones, is_stored, discount)
    last_rows = (rows + num_rewards - 1) % jax.tree.leaves(state.data)[0].shape[0]
    next_obs, termination = take((state.data.next_obs, state.data.extras.termination), last_rows, envs, num_envs)
    discounts = discount**num_rewards * (1.0 - termination.astype(jnp.float32))
    computed = {"num_rewards": num_rewards, "discounts": discounts}
    return first.replace(rewards=rewards, next_obs=next_obs, extras=first.extras | computed)


def window_from(
    state: ReplayState, rows: jax.Array, envs: jax.Array, num_envs: int, num_steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return ``n = num_steps`` rows from ``rows`` on, their environments, and a mask of stored steps, ``[..., n]``."""
    num_rows = jax.tree.leaves(state.data)[0].shape[0]
    steps = jnp.arange(num_steps)
    window_rows = (rows[..., None] + steps) % num_rows
    stored = state.num_from(rows, envs, num_envs)
    return window_rows, jnp.broadcast_to(envs[..., None], window_rows.shape), steps < stored[..., None]


def discounted_sum(
    rewards: jax.Array, ends: jax.Array, is_stored: jax.Array, discount: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Return the discounted sum of stored ``rewards`` ``[..., n]`` up to the first end (included), and their number."""
    ended_before = jnp.cumsum(ends.astype(jnp.int32), axis=-1) - ends.astype(jnp.int32)
    is_in = (ended_before == 0) & is_stored
    num_rewards = is_in.sum(axis=-1, dtype=jnp.int32)
    steps = jnp.arange(rewards.shape[-1])
    return jnp.where(is_in, rewards * discount**steps, 0.0).sum(axis=-1), num_rewards
