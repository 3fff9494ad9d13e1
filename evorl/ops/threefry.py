"""Threefry random bits for the inside of loops: the numbers of JAX's default generator, drawn without a loop.

On a CPU JAX compiles Threefry-2x32 (Salmon et al. 2011) to a loop of its own, which suits few large draws. A rollout
makes many tiny ones: there the loop costs more than the environment. Written out, the twenty rounds become one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from evorl.types import Key

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry_2x32(key: jax.Array, high: Any, low: Any) -> tuple[jax.Array, jax.Array]:
    """Twenty rounds on the counter ``(high, low)`` under ``key`` ``[2]``, as in section 3.2 of the paper."""
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + words[(group + 1) % 3]
        y = y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _counters(shape: Sequence[int]) -> tuple[Any, jax.Array]:
    size = int(np.prod(shape, dtype=np.int64))
    if size >= 2**32:
        raise ValueError(f"a draw inside a loop has less than 2^32 numbers, got shape {tuple(shape)}.")
    return jnp.zeros(shape, jnp.uint32), jnp.arange(size, dtype=jnp.uint32).reshape(shape)


def _random_bits(key: jax.Array, bit_width: int, shape: Sequence[int]) -> jax.Array:
    if bit_width != 32:
        dtype = jnp.dtype(f"uint{bit_width}")
        return jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), tuple(shape), dtype)
    high, low = _threefry_2x32(key, *_counters(shape))
    return high ^ low


def _split(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.stack(_threefry_2x32(key, *_counters(shape)), axis=-1)


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    return jnp.stack(_threefry_2x32(key, jnp.uint32(0), data.astype(jnp.uint32)))


def _seed(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


UNROLLED_THREEFRY = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="unrolled_threefry2x32",
    tag="uth",
)


def unrolled(keys: Key) -> Key:
    """The same keys for use inside a loop: what is drawn with them is the same to the last bit.

    Keys of another generator than JAX's default are returned as they are.
    """
    if str(jax.random.key_impl(keys)) != "threefry2x32":
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=UNROLLED_THREEFRY)
