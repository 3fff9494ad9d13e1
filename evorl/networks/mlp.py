"""Multi-layer perceptrons."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.activations import activation_by_name
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


class MLP(nn.Module):
    """Dense layers, each followed by the activation; ``[..., I] -> [..., hidden_sizes[-1]]``.

    Attributes:
        hidden_sizes: widths of the layers.
        activation: a name of ``evorl.networks.activations``.
        layer_norm: whether to normalise between each hidden layer and its activation (Ba et al. 2016).
        orthogonal: orthogonal initial weights (gain sqrt(2)) instead of uniform ones of unit gain.
        output_size: width of one more, linear layer; ``None`` for none.
        output_scale: gain of that layer's initial weights.
    """

    hidden_sizes: tuple[int, ...]
    activation: str = "tanh"
    layer_norm: bool = False
    orthogonal: bool = True
    output_size: int | None = None
    output_scale: float = 1.0
    input_ndim: ClassVar[int] = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        activation = activation_by_name(self.activation)
        gain = math.sqrt(2.0) if self.orthogonal else 1.0
        for size in self.hidden_sizes:
            x = dense(size, self.orthogonal, gain)(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = activation(x)
        if self.output_size is not None:
            x = dense(self.output_size, self.orthogonal, self.output_scale)(x)
        return x
