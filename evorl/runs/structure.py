"""Structure of a state: paths, shapes and dtypes of leaves, comparison, and conversion to plain arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.processes import on_host
from evorl.ops.trees import as_untyped, leaf_name

NUM_NAMED = 5  # differences of each kind listed in a message; others are only counted
LARGE = 2**20  # minimum size in bytes of leaves that are stored separately
SMALL = "small"


class CheckpointError(ValueError):
    """Raised for a missing or corrupted checkpoint, or one with a different structure; the message states why."""


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """One leaf of a state.

    Attributes:
        path: path in the tree, names joined by ``/``.
        shape: shape of the array; for PRNG keys, of the array of keys.
        dtype: name of the dtype; ``key<fry>`` and similar for PRNG keys.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_key(self) -> bool:
        """True if the leaf holds typed PRNG keys."""
        return self.dtype.startswith("key<")

    @property
    def is_empty(self) -> bool:
        """True if the leaf has no elements, which array stores reject."""
        return 0 in self.shape

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        return {"path": self.path, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> LeafSpec:
        """Build the spec from the result of ``to_json``."""
        return cls(str(described["path"]), tuple(described["shape"]), str(described["dtype"]))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def describe_structure(state: Any) -> list[LeafSpec]:
    """Return the spec of each leaf in tree order; leaves are arrays, ``jax.ShapeDtypeStruct`` or Python numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    names = [leaf_name(path, "/") or "state" for path, _ in leaves]
    if len(set(names)) < len(names):  # a name that contains a slash may equal a path
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return [LeafSpec(name, *_shape_and_dtype(leaf)) for name, (_, leaf) in zip(names, leaves, strict=True)]


def explain_difference(saved: Sequence[LeafSpec], expected: Sequence[LeafSpec]) -> str | None:
    """Return a description of the differences between a saved and the expected structure; ``None`` if equal."""
    before, after = {leaf.path: leaf for leaf in saved}, {leaf.path: leaf for leaf in expected}
    missing = [path for path in after if path not in before]
    unexpected = [path for path in before if path not in after]
    changed = [
        f"{path} (saved {before[path]}, expected {after[path]})"
        for path in before
        if path in after and str(before[path]) != str(after[path])
    ]
    kinds = {"missing": missing, "not expected": unexpected, "with another shape or dtype": changed}
    return "; ".join(f"{len(names)} {kind}: {_first_few(names)}" for kind, names in kinds.items() if names) or None


def pack(state: Any, large: float = LARGE) -> tuple[dict[str, Any], dict[str, int]]:
    """Convert a state to a few plain arrays: PRNG keys become their key data, and empty leaves are omitted.

    Small leaves are concatenated in one array of bytes, which is stored several times faster than a hundred arrays.
    Large leaves stay on their devices and are written piece by piece, so that saving does not duplicate the state.

    Args:
        state: any pytree of arrays and numbers.
        large: minimum size of a large leaf in bytes; ``math.inf`` concatenates all leaves.

    Returns:
        The arrays by name, and by path the byte offset of each small leaf in the array ``small``.
    """
    arrays: dict[str, Any] = {}
    offsets: dict[str, int] = {}
    pieces = [np.zeros(0, np.uint8)]
    length = 0
    for spec, leaf in zip(describe_structure(state), jax.tree.leaves(state), strict=True):
        if spec.is_empty:
            continue
        plain = _plain(leaf)
        if plain.nbytes >= large:
            arrays[large_name(spec.path)] = plain
            continue
        offsets[spec.path] = length
        length += plain.nbytes
        pieces.append(np.ascontiguousarray(plain).reshape(-1).view(np.uint8))
    if offsets:
        arrays[SMALL] = np.concatenate(pieces)
    return arrays, offsets


def unpack(spec: LeafSpec, template: Any, arrays: dict[str, Any], offset: int | None) -> Any:
    """Return a leaf of ``arrays`` in the type of ``template``; remove a large leaf (``offset=None``) from ``arrays``.

    Raises:
        CheckpointError: a small leaf extends beyond the end of the common array.
    """
    stored = jax.ShapeDtypeStruct(spec.shape, template.dtype if spec.is_key else spec.dtype)
    stored = jax.eval_shape(jax.random.key_data, stored) if spec.is_key else stored
    if spec.is_empty:
        plain = np.zeros(stored.shape, stored.dtype)
    elif offset is None:
        plain = arrays.pop(large_name(spec.path))
    else:
        size = math.prod(stored.shape) * stored.dtype.itemsize
        data = arrays[SMALL][offset : offset + size]
        if data.size != size:
            raise CheckpointError(f"The checkpoint is corrupted: {spec.path} is not within its file.")
        plain = data.copy().view(stored.dtype).reshape(stored.shape)
        if (sharding := getattr(template, "sharding", None)) is not None:
            plain = jax.make_array_from_callback(plain.shape, sharding, plain.__getitem__)
    if spec.is_key:
        return jax.random.wrap_key_data(jnp.asarray(plain), impl=_key_implementation(spec, template.dtype))
    return type(template)(plain) if isinstance(template, bool | int | float) else plain


def large_name(path: str) -> str:
    """Return the name under which a large leaf is stored."""
    return f"large/{path}"


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], str]:
    if isinstance(leaf, bool | int | float):
        return (), str(jnp.result_type(leaf))
    return tuple(leaf.shape), str(leaf.dtype)


def _key_implementation(spec: LeafSpec, dtype: Any) -> Any:
    implementations = []
    # JAX only returns the key implementation of arrays, not of dtypes.
    keys = jax.ShapeDtypeStruct(spec.shape, dtype)
    jax.eval_shape(lambda keys: implementations.append(jax.random.key_impl(keys)), keys)
    return implementations[0]


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        leaf = as_untyped(leaf)
        return leaf if leaf.nbytes >= LARGE else on_host(leaf)
    return np.asarray(leaf, dtype=_shape_and_dtype(leaf)[1])


def _first_few(names: Sequence[str]) -> str:
    rest = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
