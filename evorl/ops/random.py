"""Random keys: one for a whole batch, or one per row.

Every sampling function of the package accepts either a scalar key for the whole batch or a batch of keys, one per row.
Per-row keys make an environment's random numbers independent of how environments are split over devices and chunks.
Sampling is one vectorized call in both cases.

Inside loops, ``unrolled`` keys give the same numbers as JAX's default generator, without a nested loop.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from evorl.ops.platform import on_cpu
from evorl.types import Key


def as_typed_key(key: Any) -> Key:
    """Convert a typed or legacy (``jax.random.PRNGKey``) key, or a batch, to typed keys; else raise ``TypeError``."""
    if isinstance(key, jax.Array | np.ndarray) or hasattr(key, "dtype"):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            return jnp.asarray(key)
        if key.dtype == jnp.uint32 and key.ndim >= 1:
            return jax.random.wrap_key_data(jnp.asarray(key))
        received = f"an array of {key.dtype}{list(key.shape)}"
    else:
        received = f"{key!r} of type {type(key).__name__}"
    raise TypeError(f"expected a random key, got {received}: create one with jax.random.key(seed).")


def keys_of_seeds(key: Key, seeds: jax.Array) -> Key:
    """Return the keys ``[N]`` of the seeds ``seed + seeds``, for a Threefry or RBG ``key = jax.random.key(seed)``."""
    data = jax.random.key_data(key)
    offsets = jnp.zeros_like(data, shape=(*seeds.shape, *data.shape))
    offsets = offsets.at[:, 1::2].set(seeds[:, None].astype(data.dtype))  # RBG keys consist of two Threefry keys
    return jax.random.wrap_key_data(data + offsets, impl=jax.random.key_impl(key))


def seed_or_key(key: Key | int) -> Key:
    """Return ``jax.random.key(key)`` for an integer, also of NumPy or JAX, otherwise ``as_typed_key(key)``."""
    with contextlib.suppress(TypeError):  # not an integer
        if not isinstance(key, bool):
            return jax.random.key(operator.index(key))
    return as_typed_key(key)


def per_row(sample_fn: Callable[..., Any], key: Key, *args: Any) -> Any:
    """Return ``sample_fn(key, *args)`` for a scalar key, or its results for each row of ``key`` and ``args``.

    Args:
        sample_fn: called as ``sample_fn(key, *args)`` with a scalar key.
        key: a scalar key, or keys ``[B]`` (any number of leading axes).
        *args: pytrees of arrays; with a batch of keys, their leaves have the leading axes of ``key``.
    """
    key = as_typed_key(key)
    for _ in range(key.ndim):
        sample_fn = jax.vmap(sample_fn)
    return sample_fn(key, *args)


def draw(sampler: Callable[[Key, Sequence[int]], jax.Array], key: Key, shape: Sequence[int]) -> jax.Array:
    """Return ``sampler(key, shape)``; with a batch of keys for the leading axes of ``shape``, each key samples one row.

    Raises:
        ValueError: a batch of keys does not match the leading axes of ``shape``.
    """
    key, shape = as_typed_key(key), tuple(shape)
    if key.shape != shape[: key.ndim]:
        raise ValueError(f"keys {key.shape} must match the leading axes of a sample {shape}: pass one key, or a batch.")
    return per_row(lambda row_key: sampler(row_key, shape[key.ndim :]), key)


def split_rows(key: Key, num: int = 2) -> tuple[Key, ...]:
    """Split ``key``, or each key of a batch, into ``num`` keys; each result has the shape of ``key``."""
    keys = per_row(lambda row_key: jax.random.split(row_key, num), key)
    return tuple(keys[..., i] for i in range(num))


def row_keys(key: Key, num: int) -> Key:
    """Return keys ``[num]``: ``key`` itself if it has this shape, or split from a scalar; else raise ``ValueError``."""
    key = as_typed_key(key)
    if key.ndim == 0:
        return jax.random.split(key, num)
    if key.shape != (num,):
        raise ValueError(f"keys of shape {key.shape} do not match {num} rows: pass one key, or one per row.")
    return key


def per_leaf(sample_fn: Callable[..., Any], key: Key, tree: Any, *others: Any) -> Any:
    """Map ``sample_fn(key, leaf, *other_leaves)`` over the leaves of ``tree``, each with a different key.

    Args:
        sample_fn: called with a scalar key; mapped over the rows of the leaves for a batch of keys.
        key: a scalar key, or keys ``[B]`` for leaves ``[B, ...]``.
        tree: a pytree of arrays.
        *others: pytrees of the same structure.
    """
    leaves, structure = jax.tree.flatten(tree)
    columns = zip(leaves, *(structure.flatten_up_to(other) for other in others), strict=True)
    keys = split_rows(key, len(leaves))
    return structure.unflatten([per_row(sample_fn, k, *column) for k, column in zip(keys, columns, strict=True)])


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@jax.jit  # traced once per shape, not once per call: a training step has dozens of calls
def _threefry_2x32(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Apply twenty rounds to the counter ``(high, low)`` under ``key`` ``[2]`` (Salmon et al. 2011, section 3.2)."""
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + words[(group + 1) % 3]
        y = y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _counters(shape: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    size = int(np.prod(shape, dtype=np.int64))
    if size >= 2**32:
        raise ValueError(f"a draw inside a loop must have fewer than 2^32 numbers, got shape {tuple(shape)}.")
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
    """Convert keys for use inside a loop; samples are bit-identical.

    On a CPU, JAX compiles Threefry-2x32 (Salmon et al. 2011) to a loop, which is efficient for a few large samples. A
    rollout takes many tiny samples, for which the loop costs more than the environment. Unrolled, the twenty rounds
    become one kernel. Without unrolling, an iteration of PPO on 4 CartPoles, 128 steps each, takes 1.26 times the CPU
    time (median of 15 alternating pairs, AMD EPYC, 2 cores).

    Keys of a generator other than JAX's default, and all keys on devices other than a CPU, are returned unchanged.
    """
    if not on_cpu() or str(jax.random.key_impl(keys)) != "threefry2x32":
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=UNROLLED_THREEFRY)
