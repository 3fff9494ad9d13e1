"""The one ring engine: rows of time, written in order, the oldest overwritten first.

Storage leaves are ``[R, B, ...]``: R rows, each holding one transition of every environment. The environment axis is
the one a device mesh shards, so a device keeps the transitions of its own environments and writing needs no
communication. A ring of a single environment is whole on every device, and each is given the same rows; so whole
episodes are stored, one after another, whose lengths differ. A buffer is this engine plus a *strategy*: a function of
state and key that gives ``(rows, envs)``.

The ring is never carried through ``lax.cond``, which may copy it whole: rows that are not wanted are dropped by their
index. Writing is a scatter of whole rows, which XLA does in place when the state is donated or carried by a loop.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.collectives import local_indices, num_shards, sum_shards
from evorl.ops.trees import tree_where
from evorl.types import PyTreeData

Tree = TypeVar("Tree")
DROPPED = 2**31 - 1  # a row beyond every ring


class ReplayState(PyTreeData):
    """The contents of a ring.

    Attributes:
        data: pytree with leaves ``[R, B, ...]``.
        cursor: the row that is written next, int32 scalar.
        size: number of rows filled, int32 scalar, at most R.
    """

    data: Any
    cursor: jax.Array
    size: jax.Array

    def num_from(self, rows: jax.Array, envs: jax.Array, num_envs: int) -> jax.Array:
        """How many steps are stored side by side from those at ``(rows, envs)`` on; see ``take``."""
        num_rows = jax.tree.leaves(self.data)[0].shape[0]
        return (self.cursor - 1 - rows) % num_rows + 1


Ring = TypeVar("Ring", bound=ReplayState)


def init_ring(num_rows: int, num_envs: int, sample_spec: Any, num_columns: int = 1) -> ReplayState:
    """An empty ring for ``num_envs`` environments, of which this device holds its share.

    Args:
        num_rows: R.
        num_envs: B over all devices; a single one is kept by each of them.
        sample_spec: one transition of one environment: arrays, numbers or ``jax.ShapeDtypeStruct``.
        num_columns: of each environment, side by side.
    """
    local = num_columns * (1 if num_envs == 1 else local_indices(num_envs).shape[0])
    spec = jax.eval_shape(lambda tree: tree, sample_spec)
    data = jax.tree.map(lambda leaf: jnp.zeros((num_rows, local, *leaf.shape), leaf.dtype), spec)
    return ReplayState(data=data, cursor=jnp.zeros((), jnp.int32), size=jnp.zeros((), jnp.int32))


def add_rows(state: Ring, batch: Any, mask: jax.Array | None = None) -> Ring:
    """The ring with the rows of ``batch`` written after the newest one.

    Args:
        state: the ring.
        batch: leaves ``[T, B, ...]`` with T at most R, any T at every call.
        mask: which rows to write, bool ``[T]`` or a scalar for all; the others leave no gap. All by default.

    Raises:
        ValueError: the batch has another structure, shape or dtype than the ring, or more rows.
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
    """Where the rows of a batch go, int32 ``[T]``, ``DROPPED`` for those that are not wanted; and how many are."""
    num_rows = jax.tree.leaves(state.data)[0].shape[0]
    is_stored = jnp.broadcast_to(jnp.asarray(True if mask is None else mask, bool), (num_new,))
    position = jnp.cumsum(is_stored.astype(jnp.int32)) - 1  # [T]
    return jnp.where(is_stored, (state.cursor + position) % num_rows, DROPPED), position[-1] + 1


def replace_entries(state: Ring, rows: jax.Array, envs: jax.Array, entries: Any) -> Ring:
    """The ring with other values of some entries of the transitions at ``(rows, envs)``, of this device's environments.

    Args:
        state: a ring of dicts.
        rows: ``[N]``, int32; those beyond the ring are dropped.
        envs: ``[N]``, int32.
        entries: by name, leaves ``[N, ...]``.
    """

    def write(storage: jax.Array, new: jax.Array) -> jax.Array:
        return storage.at[rows, envs].set(new.astype(storage.dtype), mode="drop")

    changed = {name: jax.tree.map(write, state.data[name], new) for name, new in entries.items()}
    return state.replace(data=state.data | changed)


def take(data: Tree, rows: jax.Array, envs: jax.Array, num_envs: int) -> Tree:
    """The transitions at ``(rows, envs)``, leaves ``[*rows.shape, ...]``.

    On a mesh ``envs``, or columns where environments have several, are global indices, equal on every device: each
    contributes those it holds, zeros otherwise, and the sum is the same on all, however many devices there are.
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
    """Bools and short integers, which not every backend can sum across devices."""
    return dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.dtype(dtype).itemsize < 4)


def check_batch(data: Any, batch: Any) -> None:
    """Raises ``ValueError`` where ``batch`` ``[T, B, ...]`` is not like ``data`` ``[R, B, ...]``, or is longer."""
    if jax.tree.structure(data) != jax.tree.structure(batch):
        raise ValueError(
            "the batch has other fields than the replay buffer was built for: "
            f"expected {jax.tree.structure(data)}, got {jax.tree.structure(batch)}."
        )
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1:
        raise ValueError(f"the fields of the batch differ in their number of rows: {sorted(lengths)}.")
    for (path, storage), leaf in zip(jax.tree_util.tree_leaves_with_path(data), jax.tree.leaves(batch), strict=True):
        name = jax.tree_util.keystr(path)
        if leaf.shape[1:] != storage.shape[1:] or leaf.dtype != storage.dtype:
            raise ValueError(
                f"{name} of the batch is {leaf.dtype}{list(leaf.shape)}; the replay buffer takes "
                f"{storage.dtype}[T, {', '.join(map(str, storage.shape[1:]))}]."
            )
        if leaf.shape[0] > storage.shape[0]:
            raise ValueError(
                f"a batch of {leaf.shape[0]} rows does not fit into a replay buffer of {storage.shape[0]} rows: "
                "raise the capacity or collect fewer steps at once."
            )
