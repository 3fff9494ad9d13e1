"""Projection of weights onto unit spheres after each optimizer step or mutation (Loshchilov et al. 2025,
https://arxiv.org/abs/2410.01131; Lee et al. 2025, https://arxiv.org/abs/2502.15280).

If a layer's outputs are normalized, the norm of its weights only affects the effective learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from evorl.types import Params

_SMALLEST_NORM = 1e-8
_NORMALIZATIONS = ("BatchRenorm", "RMSNorm", "LayerNorm")
Projection: TypeAlias = Literal["unit_norm", "unit_norm_and_gains"]


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _layer(path: tuple) -> str:
    return _name(path).rpartition("/")[0]


def unit_norm_kernels(params: Params) -> Params:
    """Return parameters in which the weights of each unit, over all its inputs, have Euclidean norm 1.

    The projected leaves are called ``kernel``: ``[..., inputs, outputs]`` in dense layers, with any leading axes such
    as an ensemble's, and ``[..., height, width, inputs, outputs]`` in convolutions. All other leaves, such as biases
    and gains, are unchanged, and so are units with only zero weights.
    """

    def projected(path: tuple, x: jax.Array) -> jax.Array:
        layer, _, name = _name(path).rpartition("/")
        if name != "kernel":
            return x
        is_convolution = x.ndim >= 4 and layer.rpartition("/")[2].lower().startswith("conv")
        axes = (-4, -3, -2) if is_convolution else (-2,)
        norm = jnp.sqrt(jnp.square(x).sum(axis=axes, keepdims=True))
        return x / jnp.maximum(norm, _SMALLEST_NORM)

    return jax.tree.map_with_path(projected, params)


def unit_norm_kernels_and_gains(params: Params) -> Params:
    """Return ``unit_norm_kernels(params)`` with the gains and shifts of each normalization layer also scaled, jointly
    to the Euclidean norm ``sqrt(F)``, for F features (FlashSAC, Kim et al. 2026, https://arxiv.org/abs/2604.04539).

    These are the leaves ``scale`` and ``bias`` ``[..., F]`` of batch, RMS and layer normalizations.
    """
    squares: dict[str, Any] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        layer = _layer(path)
        if layer.rpartition("/")[2].startswith(_NORMALIZATIONS):
            squares[layer] = squares.get(layer, 0.0) + jnp.square(x).mean(axis=-1, keepdims=True)

    def projected(path: tuple, x: jax.Array) -> jax.Array:
        layer = _layer(path)
        return x * jax.lax.rsqrt(squares[layer] + _SMALLEST_NORM) if layer in squares else x

    return jax.tree.map_with_path(projected, unit_norm_kernels(params))


# Projections by their name in a config.
PROJECTIONS: dict[str, Callable[[Params], Params]] = {
    "unit_norm": unit_norm_kernels,
    "unit_norm_and_gains": unit_norm_kernels_and_gains,
}


def projected(params: Params, projection: Projection | None) -> Params:
    """Return the projected parameters of one individual, or of a population ``[P, ...]``; unchanged for ``None``."""
    return params if projection is None else PROJECTIONS[projection](params)
