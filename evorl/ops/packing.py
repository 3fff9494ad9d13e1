"""Many small arrays as few: the leaves of a tree side by side in one array per dtype.

A loop that writes or gathers many small leaves pays for each of them in each iteration; packed, it pays once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def pack(tree: Tree, num_axes: int = 1) -> tuple[dict[str, jax.Array], Callable[[dict[str, jax.Array]], Tree]]:
    """The leaves of ``tree`` joined along a last axis, by dtype, and the function that takes them apart.

    Args:
        tree: arrays with ``num_axes`` common leading axes; typed keys too.
        num_axes: how many axes lead.

    Returns:
        Arrays ``[*leading, features]`` by dtype, and ``unpack``: it takes such arrays with any leading axes.
    """
    leaves, treedef = jax.tree.flatten(tree)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    impls = [jax.random.key_impl(leaf) if is_key else None for leaf, is_key in zip(leaves, keys, strict=True)]
    leaves = [jax.random.key_data(leaf) if is_key else leaf for leaf, is_key in zip(leaves, keys, strict=True)]
    places: list[tuple[str, int, tuple[int, ...]]] = []  # dtype, offset, shape of each leaf
    parts: dict[str, list[jax.Array]] = {}
    widths: dict[str, int] = {}
    for leaf in leaves:
        name, shape = str(leaf.dtype), leaf.shape[num_axes:]
        parts.setdefault(name, []).append(leaf.reshape(*leaf.shape[:num_axes], math.prod(shape)))
        places.append((name, widths.get(name, 0), shape))
        widths[name] = widths.get(name, 0) + math.prod(shape)

    def unpack(packed: dict[str, jax.Array]) -> Tree:
        unpacked: list[Any] = []
        for (name, offset, shape), impl in zip(places, impls, strict=True):
            array = packed[name]
            leaf = array[..., offset : offset + math.prod(shape)].reshape(*array.shape[:-1], *shape)
            unpacked.append(leaf if impl is None else jax.random.wrap_key_data(leaf, impl=impl))
        return jax.tree.unflatten(treedef, unpacked)

    return {name: jnp.concatenate(arrays, axis=-1) for name, arrays in parts.items()}, unpack
