"""Gaussian noise of a population, recomputed wherever it is needed instead of stored.

The noise of individual i is a pure function of the generation's key and i. Any device can compute it in blocks, and the
weighted sums that updates need are accumulated block by block, so that memory does not grow with P times the number of
parameters.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from evorl.ops import collectives
from evorl.ops.low_rank import LowRankNoise, is_noise
from evorl.types import Key, Params

BLOCK_NUMBERS = 1 << 19  # maximum number of random numbers in memory in weighted sums, unless one individual needs more


def noise_rows(key: Key, like: Params, first: jax.Array | int, count: int, rank: int | None = None) -> Params:
    """Return standard normal noise of individuals ``first .. first + count - 1``, leaves ``[count, ...]``.

    The noise of an individual has the structure of ``like``, one solution; each leaf has its own key. With a ``rank``,
    the noise of matrices is ``LowRankNoise``: its entries have mean 0 and variance 1, but are not independent normals.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(count))
    leaves, treedef = jax.tree.flatten(like)

    def draw(number: int, leaf: jax.Array) -> jax.Array | LowRankNoise:
        leaf_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        shape = _drawn_shape(leaf, rank)
        numbers = jax.vmap(lambda leaf_key: jax.random.normal(leaf_key, shape))(leaf_keys)
        return numbers if shape == jnp.shape(leaf) else LowRankNoise.from_normal(numbers, jnp.shape(leaf)[0])

    return jax.tree.unflatten(treedef, [draw(number, leaf) for number, leaf in enumerate(leaves)])


def _drawn_shape(leaf: jax.Array, rank: int | None) -> tuple[int, ...]:
    """Return the shape of the random numbers of one leaf; the factors of low-rank noise are sampled as one array."""
    shape = jnp.shape(leaf)
    return shape if rank is None or len(shape) != 2 else (rank, sum(shape))


def mirrored_rows(key: Key, like: Params, first: jax.Array | int, count: int, rank: int | None = None) -> Params:
    """Return mirrored noise: individual 2k has the noise of pair k, individual 2k + 1 the negated noise.

    ``first`` and ``count`` must be even; for the other arguments see ``noise_rows``.
    """
    half = noise_rows(key, like, first // 2, count // 2, rank)

    def pairs(x: jax.Array, sign: int) -> jax.Array:
        return jnp.stack([x, sign * x], axis=1).reshape(count, *x.shape[1:])

    def mirror(x: jax.Array | LowRankNoise) -> jax.Array | LowRankNoise:
        # Negating one factor negates the product.
        if isinstance(x, LowRankNoise):
            return x.replace(left=pairs(x.left, -1), right=pairs(x.right, 1))
        return pairs(x, -1)

    return jax.tree.map(mirror, half, is_leaf=is_noise)


def weighted_sums(key: Key, like: Params, *terms: tuple[jax.Array, int], rank: int | None = None) -> tuple[Params, ...]:
    """Return ``sum_i w_i noise_i^k`` for each term ``(w, k)``, where ``noise_i`` is row i of ``noise_rows``.

    Individuals are sharded over the devices of a mesh; each device computes the noise of a block of them at a time.

    Args:
        key: random key of the generation.
        like: one solution.
        *terms: pairs of weights ``[P]`` and an elementwise power of the noise; low-rank noise only supports power 1.
        rank: rank of the noise of matrices, see ``noise_rows``.

    Returns:
        A tree with the structure of ``like`` for each term, identical on all devices.
    """
    num_rows = terms[0][0].shape[0]
    first, count = collectives.share_of(num_rows)
    size = sum(math.prod(_drawn_shape(leaf, rank)) for leaf in jax.tree.leaves(like))
    block = max(1, min(count, BLOCK_NUMBERS // max(size, 1)))
    num_blocks = -(-count // block)
    weights = jnp.stack([w for w, _ in terms])
    weights = jnp.pad(weights, ((0, 0), (0, collectives.num_shards() * count + block - num_rows)))

    def add_block(i: jax.Array | int, sums: tuple[Params, ...]) -> tuple[Params, ...]:
        start = first + i * block
        inside = i * block + jnp.arange(block) < count  # the last block may extend into the next device's shard
        block_weights = jnp.where(inside, jax.lax.dynamic_slice_in_dim(weights, start, block, axis=1), 0.0)
        rows = noise_rows(key, like, start, block, rank)
        return tuple(
            jax.tree.map(lambda total, x, w=w, k=k: total + _weighted_sum(w, x, k), total, rows)
            for w, total, (_, k) in zip(block_weights, sums, terms, strict=True)
        )

    zeros = tuple(jax.tree.map(lambda x: jnp.zeros(jnp.shape(x)), like) for _ in terms)
    sums: Any = add_block(0, zeros) if num_blocks == 1 else jax.lax.fori_loop(0, num_blocks, add_block, zeros)
    return collectives.sum_shards(sums)


def _weighted_sum(weights: jax.Array, noise: jax.Array | LowRankNoise, power: int) -> jax.Array:
    if not isinstance(noise, LowRankNoise):
        return jnp.tensordot(weights, noise**power, axes=1)
    if power != 1:
        raise ValueError(f"Sums of low-rank noise need power 1, got {power}: use full-rank noise, rank=None.")
    return noise.weighted_sum(weights)


def mirrored_sums(key: Key, like: Params, *terms: tuple[jax.Array, int], rank: int | None = None) -> tuple[Params, ...]:
    """Return ``weighted_sums`` for the noise of ``mirrored_rows``, sampling each pair only once; P must be even."""
    joined = [(w[0::2] - w[1::2] if power % 2 else w[0::2] + w[1::2], power) for w, power in terms]
    return weighted_sums(key, like, *joined, rank=rank)
