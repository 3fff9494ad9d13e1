"""Crossover operators, which produce two children from each pair of parents.

The parents are two populations, leaves ``[N, ...]``: row i of both is pair i. The children have the same form. ``key``
is a single key, or one key per pair, ``[N]``. Each leaf of each pair has its own key. Where entries are exchanged, the
two children have exactly the parents' two values; where entries are mixed, the sum of the two values is preserved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from evorl.ops.random import per_leaf, row_keys
from evorl.ops.trees import num_rows
from evorl.types import Key

Tree = TypeVar("Tree")


def uniform_crossover(
    key: Key, first: Tree, second: Tree, probability: jax.Array | float = 0.5, whole_units: bool = False
) -> tuple[Tree, Tree]:
    """Exchange each entry independently with a given probability (Syswerda 1989).

    Args:
        key: a single key, or one key per pair.
        first: first parent of each pair, ``[N, ...]``.
        second: second parent of each pair, ``[N, ...]``.
        probability: probability that an entry is exchanged.
        whole_units: exchange all entries with the same index in a leaf's last axis together (the input weights of one
            unit of a layer), as in ERL (Khadka & Tumer 2018), which exchanges rows of weight matrices.
    """

    def exchanged(key: Key, a: jax.Array) -> jax.Array:
        shape = a.shape[-1:] if whole_units else a.shape
        return jnp.broadcast_to(jax.random.uniform(key, shape) < probability, a.shape)

    return _exchange(exchanged, key, first, second)


def one_point_crossover(key: Key, first: Tree, second: Tree) -> tuple[Tree, Tree]:
    """Exchange, in each flattened leaf, all entries after a random cut (Holland 1975).

    A leaf of n entries is cut at one of n + 1 positions, including both ends. A cut at an end exchanges the whole leaf
    or nothing; a leaf with one entry is exchanged with probability 1/2.
    """

    def exchanged(key: Key, a: jax.Array) -> jax.Array:
        cut = jax.random.randint(key, (), 0, a.size + 1)
        return (jnp.arange(a.size) >= cut).reshape(a.shape)

    return _exchange(exchanged, key, first, second)


def simulated_binary_crossover(
    key: Key, first: Tree, second: Tree, eta: jax.Array | float = 15.0, probability: jax.Array | float = 0.5
) -> tuple[Tree, Tree]:
    """Sample children around the parents' mean, distributed as in a one-point crossover of bits (Deb & Agrawal 1995).

    An entry of the children is ``(a + b) / 2 +- beta (a - b) / 2``, where ``beta`` has the density
    ``(eta + 1) / 2 beta^eta`` up to 1 and ``(eta + 1) / 2 beta^-(eta + 2)`` above. The signs are assigned at random.

    Args:
        key: a single key, or one key per pair.
        first: first parent of each pair, floats ``[N, ...]``.
        second: second parent of each pair, floats ``[N, ...]``.
        eta: distribution index; larger values give children closer to their parents.
        probability: probability that an entry is mixed; other entries are copied.
    """

    def spread(key: Key, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed_key, spread_key, side_key = jax.random.split(key, 3)
        u = jax.random.uniform(spread_key, a.shape)
        beta = jnp.where(u <= 0.5, 2.0 * u, 0.5 / (1.0 - u)) ** (1.0 / (eta + 1.0))
        beta = jnp.where(jax.random.bernoulli(side_key, 0.5, a.shape), beta, -beta)
        mean, offset = 0.5 * (a + b), 0.5 * beta * (a - b)
        mixed = jax.random.uniform(mixed_key, a.shape) < probability
        children = (mean + offset).astype(a.dtype), (mean - offset).astype(a.dtype)
        return jnp.where(mixed, children[0], a), jnp.where(mixed, children[1], b)

    return _cross(spread, key, first, second)


def _exchange(
    exchanged: Callable[[Key, jax.Array], jax.Array], key: Key, first: Tree, second: Tree
) -> tuple[Tree, Tree]:
    """Exchange the entries of each pair where ``exchanged(key, leaf)``, a mask with the leaf's shape, is True."""

    def exchange(key: Key, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        mask = exchanged(key, a)
        return jnp.where(mask, b, a), jnp.where(mask, a, b)

    return _cross(exchange, key, first, second)


def _cross(
    cross: Callable[[Key, jax.Array, jax.Array], tuple[jax.Array, jax.Array]], key: Key, first: Tree, second: Tree
) -> tuple[Tree, Tree]:
    """Apply ``cross(key, a, b)``, which returns two arrays, to each leaf of each pair; return two populations."""
    pairs = per_leaf(cross, row_keys(key, num_rows(first)), first, second)
    return jax.tree.transpose(jax.tree.structure(first), jax.tree.structure((0, 0)), pairs)
