"""Convolutions with fast gradients on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.layers import Dtype, compute_dtype, kernel_initializer, promoted, rounded
from evorl.ops.platform import on_cpu


class Conv(nn.Conv):
    """Flax's convolution, with float32 biases. Renaming the class would rename its parameters."""

    @nn.nowrap  # Flax then intercepts only the inherited method, not both
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Map ``[N, H, W, C]`` to ``[N, H', W', features]``."""
        return rounded(self, super().__call__(inputs))


def convolution(
    filters: int, size: int, stride: int, border: str, orthogonal: bool, scale: float, *, dtype: Dtype = "float32"
) -> nn.Conv:
    """Return a convolution over square windows, ``[N, H, W, C] -> [N, H', W', filters]``, with zero initial biases.

    Args:
        filters: number of output channels.
        size: side of a window.
        stride: step in both directions.
        border: ``same`` pads with zeros, so that stride 1 keeps the size; ``valid`` does not pad.
        orthogonal: True for orthogonal initial weights, False for uniform ones.
        scale: gain of the initial weights.
        dtype: dtype in which the layer computes, one of ``DTYPES``.
    """
    return Conv(
        filters,
        (size, size),
        stride,
        border.upper(),
        kernel_init=kernel_initializer(orthogonal, scale),
        conv_general_dilated=_convolve,
        promote_dtype=promoted,
        dtype=compute_dtype(dtype),
    )


def _convolve(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Any, *, dimension_numbers: Any, **options: Any
) -> jax.Array:
    """Convolve ``[N, H, W, C]`` with ``[h, w, C, F]``; on a CPU, as one matrix product with all windows.

    The gradient of XLA's CPU convolutions is slow inside loops, where all training happens: 3 x 3 windows of a batch of
    256 images of 10 x 10 x 4 take 17 ms, and 3 ms as a product.
    """
    if on_cpu():
        return _windows(x, kernel.shape[:2], strides, padding) @ kernel.reshape(-1, kernel.shape[-1])
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=dimension_numbers, **options)


def _windows(x: jax.Array, size: Sequence[int], strides: Sequence[int], padding: Any) -> jax.Array:
    """Extract the windows of ``[N, H, W, C]``, each flattened to one row: ``[N, H', W', h * w * C]``."""
    borders = jax.lax.padtype_to_pads(x.shape[1:3], size, strides, padding)
    x = jnp.pad(x, ((0, 0), *borders, (0, 0)))
    height, width = ((x.shape[i + 1] - size[i]) // strides[i] + 1 for i in range(2))
    shifted = [
        x[:, i : i + strides[0] * height : strides[0], j : j + strides[1] * width : strides[1]]
        for i in range(size[0])
        for j in range(size[1])
    ]
    return jnp.concatenate([part[:, :height, :width] for part in shifted], axis=-1)
