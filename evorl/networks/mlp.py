"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from typing import ClassVar

import flax.linen as nn
import jax

from evorl.networks.activations import activation_by_name


def kernel_initializer(orthogonal: bool, scale: float) -> jax.nn.initializers.Initializer:
    """Initial weights of one layer: orthogonal times ``scale`` (Saxe et al. 2014), or uniform with that gain."""
    if orthogonal:
        return jax.nn.initializers.orthogonal(scale)
    return jax.nn.initializers.variance_scaling(scale**2, "fan_in", "uniform")


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
        hidden_init = kernel_initializer(self.orthogonal, math.sqrt(2.0) if self.orthogonal else 1.0)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=hidden_init)(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = activation(x)
        if self.output_size is not None:
            x = nn.Dense(self.output_size, kernel_init=kernel_initializer(self.orthogonal, self.output_scale))(x)
        return x
