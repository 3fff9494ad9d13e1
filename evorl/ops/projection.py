"""Projection of weights onto unit spheres, after each step of an optimizer (Loshchilov et al. 2025,
https://arxiv.org/abs/2410.01131; Lee et al. 2025, https://arxiv.org/abs/2502.15280).

Networks with normalized features do not depend on the length of their weights, but the effective learning rate does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.types import Params

_SMALLEST_NORM = 1e-8


def unit_norm_kernels(params: Params) -> Params:
    """Return parameters in which the weights of each unit, over all its inputs, have the Euclidean norm 1.

    These are the leaves called ``kernel``: of dense layers ``[..., inputs, outputs]``, with any leading axes, such as
    that of an ensemble, and of convolutions ``[..., height, width, inputs, outputs]``. All other leaves, such as biases
    and gains, are unchanged.
    """

    def projected(path: tuple, x: jax.Array) -> jax.Array:
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        if names[-1] != "kernel":
            return x
        axes = (-4, -3, -2) if any(name.startswith("Conv") for name in names) else (-2,)
        norm = jnp.sqrt(jnp.square(x).sum(axis=axes, keepdims=True))
        return x / jnp.maximum(norm, _SMALLEST_NORM)

    return jax.tree.map_with_path(projected, params)
