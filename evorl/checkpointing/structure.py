"""What a state is made of: paths, shapes and dtypes, described, compared, and stripped to plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NUM_NAMED = 5  # differences spelt out in a message; the rest is counted
LARGE = 2**20


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or of another structure; the message says what differs and what to do."""


@dataclasses.dataclass(frozen=True)
class LeafSpec:
    """One leaf of a state.

    Attributes:
        path: where it stands in the tree, names joined by ``/``.
        shape: its shape; of an array of PRNG keys, the number of keys.
        dtype: its dtype's name, ``key<fry>`` and the like for PRNG keys.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_key(self) -> bool:
        """Whether it holds typed PRNG keys."""
        return self.dtype.startswith("key<")

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements, which array stores refuse."""
        return 0 in self.shape

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"path": self.path, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> LeafSpec:
        """From plain data."""
        return cls(str(described["path"]), tuple(described["shape"]), str(described["dtype"]))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def describe_structure(state: Any) -> list[LeafSpec]:
    """The leaves of a state in tree order; arrays, shapes from ``jax.eval_shape`` and Python numbers alike."""
    paths, leaves = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        paths.append(path)
        leaves.append(leaf)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or "state" for path in paths]
    if len(set(names)) < len(names):  # a name with a slash in it may read like a path
        names = [jax.tree_util.keystr(path) for path in paths]
    return [LeafSpec(name, *_shape_and_dtype(leaf)) for name, leaf in zip(names, leaves, strict=True)]


def explain_difference(saved: Sequence[LeafSpec], wanted: Sequence[LeafSpec]) -> str | None:
    """In words, how a saved structure differs from the one wanted; ``None`` when it does not."""
    before, after = {leaf.path: leaf for leaf in saved}, {leaf.path: leaf for leaf in wanted}
    missing = [path for path in after if path not in before]
    unexpected = [path for path in before if path not in after]
    changed = [
        f"{path} (saved {before[path]}, wanted {after[path]})"
        for path in before
        if path in after and str(before[path]) != str(after[path])
    ]
    parts = [
        f"{len(names)} {kind}: {_first_few(names)}"
        for kind, names in (("missing", missing), ("not expected", unexpected), ("of another shape or dtype", changed))
        if names
    ]
    return "; ".join(parts) or None


def plain_arrays(state: Any) -> dict[str, Any]:
    """The non-empty leaves as arrays without keys, by path.

    Small leaves come as NumPy arrays, which are stored twice as fast; large ones stay where they are and are copied
    to the host piece by piece, so that saving does not hold the state twice.
    """
    leaves = jax.tree.leaves(state)
    return {
        spec.path: _plain(leaf)
        for spec, leaf in zip(describe_structure(state), leaves, strict=True)
        if not spec.is_empty
    }


def restored_leaf(spec: LeafSpec, plain: Any, template: Any) -> Any:
    """A leaf like its template from what was stored; ``None`` was stored of an empty one."""
    if spec.is_key:
        return _wrapped_keys(spec, plain, template.dtype)
    if plain is None:
        plain = np.zeros(spec.shape, jnp.dtype(spec.dtype))
    if isinstance(template, bool | int | float):
        return type(template)(plain)
    return plain


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], str]:
    if isinstance(leaf, bool | int | float):
        return (), str(jnp.result_type(leaf))
    return tuple(leaf.shape), str(leaf.dtype)


def _wrapped_keys(spec: LeafSpec, words: Any, dtype: Any) -> jax.Array:
    implementations = []

    def split(keys: jax.Array) -> jax.Array:
        implementations.append(jax.random.key_impl(keys))  # told of arrays only, not of dtypes
        return jax.random.key_data(keys)

    shape = jax.eval_shape(split, jax.ShapeDtypeStruct(spec.shape, dtype))
    words = jnp.zeros(shape.shape, shape.dtype) if words is None else jnp.asarray(words)
    return jax.random.wrap_key_data(words, impl=implementations[0])


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return leaf if leaf.nbytes >= LARGE else np.asarray(leaf)
    return np.asarray(leaf, dtype=_shape_and_dtype(leaf)[1])


def _first_few(names: Sequence[str]) -> str:
    rest = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
