"""Keys, one for a whole batch or one per row.

Every sampling function of the package takes either a scalar key for the whole batch or a batch of keys, one per row.
Keys per row make the numbers of an environment independent of how environments are spread over devices and blocks.
The draw is one vectorised call in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.types import Key


def as_typed_key(key: Any) -> Key:
    """A typed key (or batch of keys) from a typed key or a legacy ``jax.random.PRNGKey`` array.

    Raises:
        TypeError: ``key`` is neither.
    """
    if isinstance(key, jax.Array | np.ndarray) or hasattr(key, "dtype"):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            return jnp.asarray(key)
        if key.dtype == jnp.uint32 and key.ndim >= 1:
            return jax.random.wrap_key_data(jnp.asarray(key))
        what = f"an array of {key.dtype}{list(key.shape)}"
    else:
        what = f"{key!r} of type {type(key).__name__}"
    raise TypeError(f"expected a random key, got {what}: make one with jax.random.key(seed).")


def per_row(sample_fn: Callable[..., Any], key: Key, *args: Any) -> Any:
    """``sample_fn(key, *args)`` for a scalar key; mapped over the rows of ``key`` and ``args`` for a batch of keys.

    Args:
        sample_fn: called as ``sample_fn(key, *args)`` with a scalar key.
        key: a scalar key, or keys ``[B]`` (any number of leading axes).
        *args: pytrees of arrays; with a batch of keys their leaves have the leading axes of ``key``.
    """
    key = as_typed_key(key)
    for _ in range(key.ndim):
        sample_fn = jax.vmap(sample_fn)
    return sample_fn(key, *args)


def draw(sampler: Callable[[Key, Sequence[int]], jax.Array], key: Key, shape: Sequence[int]) -> jax.Array:
    """``sampler(key, shape)`` for a scalar key; one draw per row for keys whose axes lead ``shape``.

    Raises:
        ValueError: a batch of keys does not match the leading axes of ``shape``.
    """
    key, shape = as_typed_key(key), tuple(shape)
    if key.shape != shape[: key.ndim]:
        raise ValueError(f"keys of shape {key.shape} cannot each draw a row of {shape}: give one key, or one per row.")
    return per_row(lambda row_key: sampler(row_key, shape[key.ndim :]), key)


def split_rows(key: Key, num: int = 2) -> tuple[Key, ...]:
    """``num`` keys from one, or as many per row from one per row: each of the shape of ``key``."""
    keys = per_row(lambda row_key: jax.random.split(row_key, num), key)
    return tuple(keys[..., i] for i in range(num))


def row_keys(key: Key, num: int) -> Key:
    """Keys ``[num]``, one per row: ``key`` itself if it is such keys, or split from it if it is a scalar.

    Raises:
        ValueError: there are keys for another number of rows.
    """
    key = as_typed_key(key)
    if key.ndim == 0:
        return jax.random.split(key, num)
    if key.shape != (num,):
        raise ValueError(f"keys of shape {key.shape} for {num} rows: give one key, or one per row.")
    return key


def per_leaf(sample_fn: Callable[..., Any], key: Key, tree: Any, *others: Any) -> Any:
    """``sample_fn(key, leaf, *other_leaves)`` for every leaf of ``tree``, each with a key of its own, as a tree.

    Args:
        sample_fn: called with a scalar key; with a batch of keys it is mapped over the rows of the leaves.
        key: a scalar key, or keys ``[B]`` for leaves ``[B, ...]``.
        tree: a pytree of arrays.
        *others: pytrees of the same structure.
    """
    leaves, structure = jax.tree.flatten(tree)
    columns = zip(leaves, *(structure.flatten_up_to(other) for other in others), strict=True)
    keys = split_rows(key, len(leaves))
    return structure.unflatten([per_row(sample_fn, k, *column) for k, column in zip(keys, columns, strict=True)])
