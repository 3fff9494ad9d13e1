"""Gaussian noise of a population, drawn again wherever it is needed instead of kept.

The noise of individual i is a pure function of the generation's key and i. So it is made in parts, by any device, and
what an update needs of it, its weighted sums, is added up part by part: memory does not grow with P times parameters.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops import collectives
from evorl.types import Key, Params

BLOCK_NUMBERS = 1 << 19  # so many random numbers at most are held while weighted sums are made


def noise_rows(key: Key, like: Params, first: jax.Array | int, count: int) -> Params:
    """Standard normal noise of individuals ``first .. first + count - 1``: leaves ``[count, ...]``.

    Every individual and every leaf draws from its own key.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(count))
    leaves, treedef = jax.tree.flatten(like)

    def draw(number: int, leaf: jax.Array) -> jax.Array:
        leaf_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        return jax.vmap(lambda leaf_key: jax.random.normal(leaf_key, jnp.shape(leaf)))(leaf_keys)

    return jax.tree.unflatten(treedef, [draw(number, leaf) for number, leaf in enumerate(leaves)])


def mirrored_rows(key: Key, like: Params, first: jax.Array | int, count: int) -> Params:
    """Noise in pairs: individual 2k has that of pair k, individual 2k + 1 its opposite. Both numbers are even."""
    half = noise_rows(key, like, first // 2, count // 2)
    return jax.tree.map(lambda x: jnp.stack([x, -x], axis=1).reshape(count, *x.shape[1:]), half)


def weighted_sums(key: Key, like: Params, *terms: tuple[jax.Array, int]) -> tuple[Params, ...]:
    """``sum_i w_i noise_i^k`` for each term ``(w, k)``, where ``noise_i`` is that of ``noise_rows``.

    The devices of a mesh share the individuals out; each makes the noise of a block of them at a time.

    Args:
        key: of the generation.
        like: one solution.
        *terms: weights ``[P]``, and the power they weigh.

    Returns:
        A tree like ``like`` for each term, equal on every device.
    """
    num_rows = terms[0][0].shape[0]
    first, count = collectives.share_of(num_rows)
    size = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(like))
    block = max(1, min(count, BLOCK_NUMBERS // max(size, 1)))
    num_blocks = -(-count // block)
    weights = jnp.stack([w for w, _ in terms])
    weights = jnp.pad(weights, ((0, 0), (0, collectives.num_shards() * count + block - num_rows)))

    def add_block(i: jax.Array | int, sums: tuple[Params, ...]) -> tuple[Params, ...]:
        start = first + i * block
        inside = i * block + jnp.arange(block) < count  # the last block may reach into the next device's share
        block_weights = jnp.where(inside, jax.lax.dynamic_slice_in_dim(weights, start, block, axis=1), 0.0)
        rows = noise_rows(key, like, start, block)
        return tuple(
            jax.tree.map(lambda total, x, w=w, k=k: total + jnp.tensordot(w, x**k, axes=1), total, rows)
            for w, total, (_, k) in zip(block_weights, sums, terms, strict=True)
        )

    zeros = tuple(jax.tree.map(lambda x: jnp.zeros(jnp.shape(x)), like) for _ in terms)
    sums: Any = add_block(0, zeros) if num_blocks == 1 else jax.lax.fori_loop(0, num_blocks, add_block, zeros)
    return collectives.sum_shards(sums)


def mirrored_sums(key: Key, like: Params, *terms: tuple[jax.Array, int]) -> tuple[Params, ...]:
    """``weighted_sums`` of the noise of ``mirrored_rows``: a pair's noise is made once. P is even."""
    joined = [(w[0::2] - w[1::2] if power % 2 else w[0::2] + w[1::2], power) for w, power in terms]
    return weighted_sums(key, like, *joined)
