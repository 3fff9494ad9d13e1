"""Convolutional torsos for pixels and grids."""

from __future__ import annotations

import math
from typing import ClassVar

import flax.linen as nn
import jax

from evorl.networks.activations import activation_by_name
from evorl.networks.mlp import MLP, kernel_initializer


class CNN(nn.Module):
    """Convolutions over ``[..., height, width, channels]``, flattened and followed by an MLP.

    The defaults are those of Mnih et al. (2015) for 84 x 84 pixels. Padding keeps the size before striding, so that
    small grids work too.

    Attributes:
        channels: number of filters of each convolution.
        kernel_sizes: side of its square kernel.
        strides: step in both directions.
        hidden_sizes: dense layers that follow.
        activation: a name of ``evorl.networks.activations``.
        layer_norm: normalise before the activations of the dense layers.
        orthogonal: orthogonal initial weights instead of uniform ones.
    """

    channels: tuple[int, ...] = (32, 64, 64)
    kernel_sizes: tuple[int, ...] = (8, 4, 3)
    strides: tuple[int, ...] = (4, 2, 1)
    hidden_sizes: tuple[int, ...] = (512,)
    activation: str = "relu"
    layer_norm: bool = False
    orthogonal: bool = True
    input_ndim: ClassVar[int] = 3

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        activation = activation_by_name(self.activation)
        kernel_init = kernel_initializer(self.orthogonal, math.sqrt(2.0) if self.orthogonal else 1.0)
        leading = x.shape[:-3]
        x = x.reshape((math.prod(leading),) + x.shape[-3:])
        for features, size, stride in zip(self.channels, self.kernel_sizes, self.strides, strict=True):
            x = activation(nn.Conv(features, (size, size), strides=stride, kernel_init=kernel_init)(x))
        x = x.reshape(leading + (math.prod(x.shape[1:]),))
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.orthogonal)(x)
