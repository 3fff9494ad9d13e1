"""Pytrees of arrays that share their leading axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")


def tree_where(mask: jax.Array, on_true: Tree, on_false: Tree) -> Tree:
    """Rows of ``on_true`` where ``mask`` holds, of ``on_false`` elsewhere.

    Args:
        mask: bool, ``[B]`` or any shape that is a prefix of every leaf's; a scalar chooses whole trees.
        on_true: leaves ``[B, ...]``.
        on_false: the same structure, shapes and dtypes.
    """

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    mask = jnp.asarray(mask)
    return jax.tree.map(choose, on_true, on_false)


def flatten_leading_axes(tree: Tree, num_axes: int = 2) -> Tree:
    """Joins the first ``num_axes`` axes of every leaf: ``[T, B, ...] -> [T * B, ...]``."""
    return jax.tree.map(lambda x: x.reshape((math.prod(x.shape[:num_axes]),) + x.shape[num_axes:]), tree)


def split_leading_axis(tree: Tree, *sizes: int) -> Tree:
    """Splits the first axis of every leaf: ``[n * m, ...] -> [n, m, ...]``; one size may be -1.

    Raises:
        ValueError: the axis is not the product of the sizes.
    """

    def split(x: jax.Array) -> jax.Array:
        known = math.prod(size for size in sizes if size != -1)
        if sizes.count(-1) > 1 or known <= 0 or x.shape[0] % known or (-1 not in sizes and x.shape[0] != known):
            raise ValueError(f"an axis of {x.shape[0]} rows cannot be split into {sizes}.")
        return x.reshape(sizes + x.shape[1:])

    return jax.tree.map(split, tree)


def num_rows(tree: Any) -> int:
    """The length of the first axis of the leaves.

    Raises:
        ValueError: there is no leaf.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves:
        raise ValueError("a tree without leaves has no rows.")
    return leaves[0].shape[0]


def finite_rows(tree: Any, num_axes: int = 1) -> jax.Array:
    """The rows, bool of the shape of the first ``num_axes`` axes of every leaf, in which all numbers are finite."""
    finite = (jnp.isfinite(x).reshape(*x.shape[:num_axes], -1).all(axis=-1) for x in jax.tree.leaves(tree))
    return functools.reduce(jnp.logical_and, finite)


def zeros_where(where: jax.Array, tree: Tree) -> Tree:
    """Leaves ``[*where.shape, ...]`` with zeros in the rows where ``where`` (bools or floats) holds."""
    return tree_where(where.astype(bool), jax.tree.map(jnp.zeros_like, tree), tree)


def named_leaves(tree: Any) -> dict[str, Any]:
    """Every leaf by its path, names joined by dots: ``agent.discount``."""
    return {_dotted(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def with_leaves(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """The tree with other values for the leaves of these dotted paths; what the tree does not have is left out."""
    return jax.tree.map_with_path(lambda path, leaf: values.get(_dotted(path), leaf), tree)


def _dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
