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
# But not for up to so many rows: the policies of a population, a row or so each, would take twice as long.
FEW_ROWS = 8
# Wider ones with at least so many rows and inputs have the gradient of their kernel from transposed inputs.
MANY_ROWS, MANY_INPUTS = 256, 32


@jax.custom_jvp
def _with_transposed_inputs(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``x @ kernel``, ``[N, I] x [I, O] -> [N, O]``, whose gradient is ``copy(x.T) @ g``.

    XLA's CPU products read ``x.T`` out of ``x`` itself, which takes up to 1.6 times longer than to transpose it first.
    """
    return x @ kernel


@_with_transposed_inputs.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (x_tangent, kernel_tangent) = primals, tangents
    transposed = jax.lax.optimization_barrier(x.T)
    # What counts is how this is transposed: to ``transposed @ g``, with respect to the kernel.
    by_kernel = jax.lax.dot_general(transposed, kernel_tangent, (((0,), (0,)), ((), ())))
    return x @ kernel, x_tangent @ kernel + by_kernel


def _product(x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
    """``x @ kernel``, ``[..., I] x [I, O] -> [..., O]``, in a form whose gradient is fast for few outputs.

    The gradient of a kernel ``[I, O]`` is ``x.T @ g``, which XLA's CPU products do a tenth as fast as others when O is
    small; that of a kernel ``[O, I]`` is ``g.T @ x``. The barrier keeps the compiler from turning one into the other.
    """
    num_outputs, num_inputs = kernel.shape[-1], kernel.shape[0]
    num_rows = x.size // num_inputs
    is_large = num_outputs > NARROW and num_inputs >= MANY_INPUTS and num_rows >= MANY_ROWS
    if is_large and jax.default_backend() == "cpu":
        rows = _with_transposed_inputs(x.reshape(-1, num_inputs), kernel)
        return rows.reshape(*x.shape[:-1], num_outputs)
    if not 1 < num_outputs <= NARROW or num_rows <= FEW_ROWS:
        return jax.lax.dot_general(x, kernel, dimension_numbers, **options)
    transposed = jax.lax.optimization_barrier(kernel.T)
    return jax.lax.dot_general(x, transposed, (((x.ndim - 1,), (1,)), ((), ())), **options)


def dense(size: int, orthogonal: bool, scale: float, name: str | None = None) -> nn.Dense:
    """A dense layer with biases of zero and the weights of ``kernel_initializer``."""
    return nn.Dense(size, kernel_init=kernel_initializer(orthogonal, scale), dot_general=_product, name=name)
