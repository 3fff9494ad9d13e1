"""Keys, one for a whole batch or one per row.

Every sampling function of the package takes either a scalar key for the whole batch or a batch of keys, one per row.
Keys per row make the numbers of an environment independent of how environments are spread over devices and blocks.
The draw is one vectorised call in both cases.

Inside of loops ``unrolled`` keys give the numbers of JAX's default generator, drawn without a loop of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from evorl.ops.collectives import on_cpu
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


def keys_of_seeds(key: Key, seeds: jax.Array) -> Key:
    """The keys of seeds ``[N]`` that are counted from the one of ``key``, which ``jax.random.key`` made of it."""
    words = jax.random.key_data(key)
    offsets = jnp.zeros_like(words, shape=(*seeds.shape, *words.shape))
    offsets = offsets.at[:, -1].set(seeds.astype(words.dtype))
    return jax.random.wrap_key_data(words + offsets, impl=jax.random.key_impl(key))


def seed_or_key(key: Key | int) -> Key:
    """The typed key of a seed, or of a key."""
    return jax.random.key(key) if isinstance(key, int) else as_typed_key(key)


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


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@jax.jit  # so that it is traced once for a shape, not for each draw: there are dozens in a training
def _threefry_2x32(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
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


def _counters(shape: Sequence[int]) -> tuple[jax.Array, jax.Array]:
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

    On a CPU JAX compiles Threefry-2x32 (Salmon et al. 2011) to a loop of its own, which suits few large draws. A
    rollout makes many tiny ones: there that loop costs more than the environment. Written out, the twenty rounds become
    one kernel. Without it an iteration of PPO on 4 CartPoles, 128 steps each, takes 1.26 times the CPU time (median of
    15 alternating pairs, AMD EPYC, 2 cores).

    Keys of another generator than JAX's default, and all keys elsewhere than on a CPU, are returned as they are.
    """
    if not on_cpu() or str(jax.random.key_impl(keys)) != "threefry2x32":
        return keys
    return jax.random.wrap_key_data(jax.random.key_data(keys), impl=UNROLLED_THREEFRY)
