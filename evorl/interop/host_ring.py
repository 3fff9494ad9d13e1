"""Ring buffer of transitions in NumPy arrays, with indices sampled in advance; faster than JAX for small batches.

Calling a JAX program takes longer than a rollout of four CartPole steps. Here each transition is one record, so that
storing a transition or gathering a batch takes a few NumPy operations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.trees import merged
from evorl.replay_buffers.ring import ReplayState
from evorl.types import Key, PyTreeDict

_AHEAD = 1024  # maximum number of calls in one block of draws
_LOWER_HALF = np.uint64(2**32 - 1)
_NUMBERS_AHEAD = 2**16  # maximum number of integers in one block, unless a single call draws more


class HostRing:
    """Ring of the latest transitions of B environments; row ``t`` of environment ``b`` has the index ``t * B + b``.

    Args:
        num_rows: R, number of time steps stored.
        num_envs: B, number of environments.
        spec: one transition, a ``PyTreeDict`` of ``jax.ShapeDtypeStruct``.

    Attributes:
        treedef: structure of the transitions.
        cursor: row that is written next.
        size: number of filled rows.

    Raises:
        ValueError: an entry is named ``indices``, a name reserved for the indices in each batch.
    """

    def __init__(self, num_rows: int, num_envs: int, spec: Any) -> None:
        spec = jax.eval_shape(lambda tree: tree, spec)  # with JAX's dtypes
        leaves, self.treedef = jax.tree.flatten(spec)
        self.cursor = self.size = 0
        self._num_rows, self._num_envs = num_rows, num_envs
        # A flat dict is split by name, because JAX's functions for general trees are slower.
        self._names = tuple(sorted(spec)) if jax.tree_util.all_leaves(spec.values()) else None
        numbers, self._batch_treedef = jax.tree.flatten(
            merged(self.treedef.unflatten(range(len(leaves))), {"indices": len(leaves)})
        )
        self._indices_at = numbers.index(len(leaves))
        self._fields = tuple(f"leaf_{i}" for i in range(len(leaves)))
        self._dtypes, self._shapes = [np.dtype(leaf.dtype) for leaf in leaves], [leaf.shape for leaf in leaves]
        self._fitting: tuple[int, list[Any]] = (-1, [])  # number N of rows; shapes and dtypes of N rows
        # Fields are aligned, and the widest are first, so that other libraries can view them without a copy.
        fields = sorted(
            zip(self._fields, self._dtypes, self._shapes, strict=True), key=lambda field: -field[1].itemsize
        )
        self._dtype = np.dtype(fields, align=True)
        # Unstructured bytes, so that a record is copied at once and not field by field.
        self._records = np.zeros(num_rows * num_envs, f"V{self._dtype.itemsize}")

    @property
    def nbytes(self) -> int:
        """Memory of all records in bytes, filled or not."""
        return self._records.nbytes

    @property
    def state(self) -> ReplayState:
        """The contents in the layout of a JAX buffer; leaves ``[R, B, ...]`` are views of the ring."""
        records = self._records.view(self._dtype).reshape(self._num_rows, self._num_envs)
        data = self.treedef.unflatten([records[field] for field in self._fields])
        cursor, size = np.int32(self.cursor), np.int32(self.size)
        return ReplayState(data=data, cursor=cursor, size=size)  # pyright: ignore[reportArgumentType]  # NumPy scalars

    def matching_leaves(self, transitions: Any) -> list[np.ndarray] | None:
        """Return the leaves of ``transitions``; ``None`` if structure, a shape or a dtype differs from the ring's.

        Args:
            transitions: leaves ``[N, ...]``, or ``[T, B, ...]`` of several environments.
        """
        leaves = self._leaves_of(transitions)
        try:
            length, kinds = len(leaves[0]), [(leaf.shape, leaf.dtype) for leaf in leaves]
        except (AttributeError, TypeError):  # the leaves are not arrays
            return None
        if length != self._fitting[0]:
            leading = (length,) if self._num_envs == 1 else (length, self._num_envs)
            stored = zip(self._shapes, self._dtypes, strict=True)
            self._fitting = (length, [(leading + shape, dtype) for shape, dtype in stored])
        return leaves if kinds == self._fitting[1] else None

    def _leaves_of(self, transitions: Any) -> list[Any]:
        if self._names is None:
            leaves, treedef = jax.tree.flatten(transitions)
            return leaves if treedef == self.treedef else [None]
        if type(transitions) is not PyTreeDict or len(transitions) != len(self._names):
            return [None]
        return [transitions.get(name) for name in self._names]

    def add(self, leaves: Sequence[np.ndarray]) -> None:
        """Append steps ``[N, ...]`` (``[T, B, ...]`` for several environments); a full ring overwrites the oldest."""
        total = len(leaves[0])
        start = max(0, total - self._num_rows)  # earlier rows would be overwritten immediately
        cursor = (self.cursor + start) % self._num_rows
        while start < total:
            count = min(total - start, self._num_rows - cursor)
            self._write(cursor, [leaf[start : start + count] for leaf in leaves] if count < total else leaves, count)
            start, cursor = start + count, (cursor + count) % self._num_rows
        self.cursor, self.size = cursor, min(self.size + total, self._num_rows)

    def _write(self, row: int, leaves: Sequence[np.ndarray], count: int) -> None:
        first, num = row * self._num_envs, count * self._num_envs
        records = self._records[first : first + num].view(self._dtype)
        if self._num_envs > 1:
            leaves = [leaf.reshape(num, *leaf.shape[2:]) for leaf in leaves]
        for field, leaf in zip(self._fields, leaves, strict=True):
            records[field] = leaf

    def take(self, indices: np.ndarray) -> PyTreeDict:
        """Return copies ``[N, ...]`` of the transitions at ``indices``, int32 ``[N]``.

        The result has the additional entry ``indices``; its other leaves are views of one structured array.
        """
        taken = self._records[indices].view(self._dtype)
        leaves: list[Any] = [taken[field] for field in self._fields]
        leaves.insert(self._indices_at, indices)
        return self._batch_treedef.unflatten(leaves)

    def replace(self, indices: np.ndarray, entries: dict[str, Any]) -> None:
        """Replace some entries, leaves ``[N, ...]``, of the transitions at ``indices`` ``[N]``."""
        rows, envs = np.divmod(indices, self._num_envs)
        data = self.state.data

        def write(storage: np.ndarray, new: np.ndarray) -> None:
            storage[rows, envs] = new

        for name, new in entries.items():
            jax.tree.map(write, data[name], new)


class DrawsAhead:
    """Uniform random integers from ``key``; one JAX program computes the random bits of many calls in advance."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._shape = (0, 0)
        self._first, self._bits = 0, np.zeros((0, 0, 0), np.uint64)

    def integers(self, call: int, num_batches: int, num: int, span: int) -> np.ndarray:
        """Return the integers of call number ``call``, from 0 to ``span - 1``, int32 ``[num_batches, num]``.

        Batch ``i`` equals ``jax.random.randint(keys[i], (num,), 0, span)`` to the last bit, where
        ``keys = jax.random.split(jax.random.fold_in(key, call), num_batches)``.
        """
        if self._shape != (num_batches, num) or not 0 <= call - self._first < len(self._bits):
            num_calls = min(max(_NUMBERS_AHEAD // max(num_batches * num, 1), 1), _AHEAD)
            halves = np.asarray(_bits(self._key, np.uint32(call), num_calls, num_batches, num), np.uint64)
            self._bits = halves[:, :, 0] << np.uint64(32) | halves[:, :, 1]
            self._shape, self._first = (num_batches, num), call
        bits = self._bits[call - self._first]
        # JAX adds (2^32 mod span) times the upper half to the lower one, in 32 bits: beyond 2^16 that factor is
        # (2^16)^2, which wraps around to 0.
        return ((bits if span <= 2**16 else bits & _LOWER_HALF) % np.uint64(span)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _bits(key: Key, first: jax.Array, num_calls: int, num_batches: int, num: int) -> jax.Array:
    """Return the random bits that ``jax.random.randint`` uses, uint32 ``[num_calls, num_batches, 2, num]``."""

    def of_call(call: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.fold_in(key, call), num_batches)
        halves = jax.vmap(jax.random.split)(keys)
        return jax.vmap(jax.vmap(lambda half: jax.random.bits(half, (num,), jnp.uint32)))(halves)

    return jax.vmap(of_call)(first + jnp.arange(num_calls, dtype=jnp.uint32))
