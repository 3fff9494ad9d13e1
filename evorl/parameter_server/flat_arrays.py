"""Serialization of a pytree of arrays to bytes, for parameters and gradients."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np


class FlatArrays:
    """Byte layout of a pytree of arrays or shapes: its leaves are concatenated in tree order, little-endian.

    Server and workers derive the layout from the config and compare its ``digest``, a hash of names, shapes and dtypes.

    Raises:
        TypeError: a leaf has an unsupported dtype, for example bfloat16 or that of typed PRNG keys.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree.flatten(tree)
        named = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        for name, leaf in zip(named, leaves, strict=True):
            if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind not in "biuf":
                raise TypeError(f"{name} has dtype {leaf.dtype}: only float16/32/64, integers and bools can be sent.")
        self._shapes = [tuple(leaf.shape) for leaf in leaves]
        self._dtypes = [np.dtype(leaf.dtype).newbyteorder("<") for leaf in leaves]
        self._sizes = [int(np.prod(x)) * y.itemsize for x, y in zip(self._shapes, self._dtypes, strict=True)]
        self.num_bytes = sum(self._sizes)
        described = [f"{x}{y}{z.str}" for x, y, z in zip(named, self._shapes, self._dtypes, strict=True)]
        self.digest = hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]

    def to_bytes(self, tree: Any) -> bytes:
        """Serialize a pytree, which must have the structure of the layout."""
        leaves = jax.tree.leaves(tree)
        return b"".join(
            np.asarray(x).astype(y, copy=False).tobytes() for x, y in zip(leaves, self._dtypes, strict=True)
        )

    def from_bytes(self, data: bytes | memoryview) -> Any:
        """Deserialize to a pytree of read-only NumPy arrays; raise ``ValueError`` if the number of bytes is wrong."""
        if len(data) != self.num_bytes:
            raise ValueError(f"expected {self.num_bytes:,} bytes, got {len(data):,}.")
        leaves, start, view = [], 0, memoryview(data)
        for shape, dtype, size in zip(self._shapes, self._dtypes, self._sizes, strict=True):
            leaves.append(np.frombuffer(view[start : start + size], dtype).reshape(shape))
            start += size
        return jax.tree.unflatten(self._structure, leaves)
