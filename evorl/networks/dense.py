"""Dense layers: their initial weights, and products whose gradients are fast."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.types import Key


def kernel_initializer(orthogonal: bool, scale: float) -> jax.nn.initializers.Initializer:
    """Initial weights of one layer: orthogonal times ``scale`` (Saxe et al. 2014), or uniform with that gain."""
    if orthogonal:
        return functools.partial(orthogonal_matrix, scale=scale)
    return jax.nn.initializers.variance_scaling(scale**2, "fan_in", "uniform")


def orthogonal_matrix(
    key: Key, shape: Sequence[int], dtype: jax.typing.DTypeLike = jnp.float32, scale: float = 1.0
) -> jax.Array:
    """A uniformly random matrix whose shorter side is orthonormal, times ``scale``; leading axes join the rows.

    It is the polar factor of a matrix of normal numbers, by the Newton-Schulz iteration (Higham 2008, eq. 8.20):
    products only. The usual QR decomposition compiles for seconds, and on a CPU with several devices its batched
    form can wait for ever for threads that the other device holds.
    """
    rows = math.prod(shape[:-1])
    x = jax.random.normal(key, (rows, shape[-1]), jnp.float32)
    x = x.T if rows > shape[-1] else x

    def iterate(_: jax.Array, x: jax.Array) -> jax.Array:
        return 1.5 * x - 0.5 * (x @ x.T) @ x

    # Singular values grow by half in each round until they are near 1, and then converge quadratically.
    x = jax.lax.fori_loop(0, 50, iterate, x / jnp.linalg.norm(x))
    x = x.T if rows > shape[-1] else x
    return (scale * x).reshape(shape).astype(dtype)


# Layers with up to so many outputs are multiplied by their transposed weights.
NARROW = 16


def _product(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
    """``x @ kernel``, ``[..., I] x [I, O] -> [..., O]``, in a form whose gradient is fast for few outputs.

    The gradient of a kernel ``[I, O]`` is ``x.T @ g``, which XLA's CPU products do a tenth as fast as others when O is
    small; that of a kernel ``[O, I]`` is ``g.T @ x``. The barrier keeps the compiler from turning one into the other.
    """
    if not 1 < kernel.shape[-1] <= NARROW:
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    transposed = jax.lax.optimization_barrier(kernel.T)
    return jax.lax.dot_general(x, transposed, (((x.ndim - 1,), (1,)), ((), ())), **options)


def dense(size: int, orthogonal: bool, scale: float, name: str | None = None) -> nn.Dense:
    """A dense layer with biases of zero and the weights of ``kernel_initializer``."""
    return nn.Dense(size, kernel_init=kernel_initializer(orthogonal, scale), dot_general=_product, name=name)
