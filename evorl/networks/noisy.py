"""Layers with learned noise in their weights, which explore by themselves (Fortunato et al. 2018,
https://arxiv.org/abs/1706.10295).
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.ops.random import draw
from evorl.types import Key


class NoisyDense(nn.Module):
    """A dense layer whose weights are drawn anew for every row, from factorised Gaussian noise (section 3, case b).

    Attributes:
        size: number of outputs.
        initial_scale: the paper's ``sigma_0``: the noise's first scale is this over the root of the number of inputs.
    """

    size: int
    initial_scale: float = 0.5

    @nn.compact
    def __call__(self, x: jax.Array, key: Key | None = None) -> jax.Array:
        """``[..., I] -> [..., size]``. ``key`` is one per row ``[...]`` or one for all; without, there is no noise."""
        num_inputs = x.shape[-1]
        bound = 1.0 / math.sqrt(num_inputs)

        def uniform(key: Key, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        constant = nn.initializers.constant(self.initial_scale * bound)
        kernel = self.param("kernel", uniform, (num_inputs, self.size))
        bias = self.param("bias", uniform, (self.size,))
        kernel_scale = self.param("kernel_scale", constant, (num_inputs, self.size))
        bias_scale = self.param("bias_scale", constant, (self.size,))
        mean = x @ kernel + bias
        if key is None:
            return mean
        noise = draw(jax.random.normal, key, (*x.shape[:-1], num_inputs + self.size))
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        # Factorised noise needs no weight matrix for each row: (x * e_in) W * e_out is x (W * e_in e_out^T).
        noise_in, noise_out = noise[..., :num_inputs], noise[..., num_inputs:]
        return mean + (((x * noise_in) @ kernel_scale) + bias_scale) * noise_out
