"""A ring of transitions in host memory, and the numbers drawn for it ahead of time: NumPy only, for small batches.

A program of JAX costs more to call than a rollout of four steps of CartPole takes. Here storing and drawing a batch are
a few operations of NumPy: each transition is one record, so that a batch is gathered by one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.replay_buffers.ring import ReplayState
from evorl.types import Key, PyTreeDict

_AHEAD = 256  # calls in one block of draws
_NUMBERS_AHEAD = 2**14  # in one block at most, unless a single call draws more


class HostRing:
    """The latest transitions of ``num_envs`` environments; transition ``b`` of row ``t`` has the index ``t * B + b``.

    Args:
        num_rows: R, steps of time that are kept.
        num_envs: B.
        spec: one transition, a tree of ``jax.ShapeDtypeStruct``.

    Attributes:
        treedef: structure of the transitions.
        cursor: row that is written next.
        size: number of filled rows.
    """

    def __init__(self, num_rows: int, num_envs: int, spec: Any) -> None:
        leaves, self.treedef = jax.tree.flatten(jax.eval_shape(lambda tree: tree, spec))  # with JAX's dtypes
        self.cursor = self.size = 0
        self._num_rows, self._num_envs = num_rows, num_envs
        self._leaves = [(f"leaf_{i}", np.dtype(leaf.dtype), leaf.shape) for i, leaf in enumerate(leaves)]
        # Aligned, the widest first: other libraries take views of fields without a copy.
        widest_first = sorted(self._leaves, key=lambda leaf: -leaf[1].itemsize)
        self._records = np.zeros(num_rows * num_envs, np.dtype(widest_first, align=True))

    @property
    def nbytes(self) -> int:
        """Memory of all records, filled or not."""
        return self._records.nbytes

    @property
    def state(self) -> ReplayState:
        """The contents as a buffer of JAX has them; leaves ``[R, B, ...]`` are views of the ring."""
        records = self._records.reshape(self._num_rows, self._num_envs)
        data = self.treedef.unflatten([records[name] for name, _, _ in self._leaves])
        cursor, size = np.int32(self.cursor), np.int32(self.size)
        return ReplayState(data=data, cursor=cursor, size=size)  # pyright: ignore[reportArgumentType]

    def fitting_leaves(self, transitions: Any) -> list[np.ndarray] | None:
        """Return the leaves of ``transitions``, or ``None`` unless all are arrays of the stored shapes and dtypes.

        Args:
            transitions: leaves ``[N, ...]``, or ``[T, B, ...]`` of several environments.
        """
        leaves, treedef = jax.tree.flatten(transitions)
        if treedef != self.treedef:
            return None
        leading = getattr(leaves[0], "shape", ())[: 1 if self._num_envs == 1 else 2]
        if not leading or (self._num_envs > 1 and leading[1:] != (self._num_envs,)):
            return None
        for leaf, (_, dtype, shape) in zip(leaves, self._leaves, strict=True):
            if leaf.__class__ is not np.ndarray or leaf.dtype != dtype or leaf.shape != leading + shape:
                return None
        return leaves

    def add(self, leaves: Sequence[np.ndarray]) -> None:
        """Write the rows of ``leaves`` ``[N, ...]`` or ``[T, B, ...]``, the oldest making room."""
        total = len(leaves[0])
        start = max(0, total - self._num_rows)  # rows before it would be overwritten at once
        cursor = (self.cursor + start) % self._num_rows
        while start < total:
            count = min(total - start, self._num_rows - cursor)
            self._write(cursor, [leaf[start : start + count] for leaf in leaves] if count < total else leaves, count)
            start, cursor = start + count, (cursor + count) % self._num_rows
        self.cursor, self.size = cursor, min(self.size + total, self._num_rows)

    def _write(self, row: int, leaves: Sequence[np.ndarray], count: int) -> None:
        first, num = row * self._num_envs, count * self._num_envs
        records = self._records[first : first + num]
        for leaf, (name, _, shape) in zip(leaves, self._leaves, strict=True):
            records[name] = leaf if self._num_envs == 1 else leaf.reshape(num, *shape)

    def take(self, indices: np.ndarray) -> PyTreeDict:
        """Copies of the transitions of these indices ``[N]``, leaves ``[N, ...]`` that are fields of one array."""
        # As bytes of no structure a record is copied at once, and not field by field.
        whole = self._records.view(f"V{self._records.itemsize}")
        taken = whole[indices].view(self._records.dtype)
        return self.treedef.unflatten([taken[name] for name, _, _ in self._leaves])

    def replace(self, indices: np.ndarray, entries: dict[str, Any]) -> None:
        """Write other values of some entries, leaves ``[N, ...]``, of the transitions of these indices ``[N]``."""
        rows, envs = np.divmod(indices, self._num_envs)
        data = self.state.data

        def write(storage: np.ndarray, new: np.ndarray) -> None:
            storage[rows, envs] = new

        for name, new in entries.items():
            jax.tree.map(write, data[name], new)


class DrawsAhead:
    """Uniform numbers of many calls, whose random bits are made by one program.

    Args:
        key: of all draws.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._shape = (0, 0)
        self._first, self._bits = 0, np.zeros((0, 0, 2, 0), np.uint32)

    def integers(self, call: int, num_batches: int, num: int, span: int) -> np.ndarray:
        """Integers from 0 to ``span - 1``, int32 ``[num_batches, num]``.

        Batch ``i`` equals ``jax.random.randint(keys[i], (num,), 0, span)`` to the last bit, where
        ``keys = jax.random.split(jax.random.fold_in(key, call), num_batches)``.
        """
        if self._shape != (num_batches, num) or not 0 <= call - self._first < len(self._bits):
            num_calls = min(max(_NUMBERS_AHEAD // max(num_batches * num, 1), 1), _AHEAD)
            bits = _bits(self._key, np.uint32(call), num_calls, num_batches, num)
            self._shape, self._first, self._bits = (num_batches, num), call, np.asarray(bits)
        # (2^32 high + low) mod span in 32 bits, which wrap around, as JAX computes it.
        rest = self._bits[call - self._first] % np.uint32(span)
        high, low = rest[:, 0], rest[:, 1]
        high *= np.uint32((2**16 % span) ** 2 % 2**32 % span)
        high += low
        return (high % np.uint32(span)).view(np.int32)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _bits(key: Key, first: jax.Array, num_calls: int, num_batches: int, num: int) -> jax.Array:
    """The bits from which ``jax.random.randint`` makes its numbers, uint32 ``[num_calls, num_batches, 2, num]``."""

    def of_call(call: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.fold_in(key, call), num_batches)
        halves = jax.vmap(jax.random.split)(keys)
        return jax.vmap(jax.vmap(lambda half: jax.random.bits(half, (num,), jnp.uint32)))(halves)

    return jax.vmap(of_call)(first + jnp.arange(num_calls, dtype=jnp.uint32))
