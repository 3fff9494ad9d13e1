"""Virtual batch normalisation (Salimans et al. 2016, https://arxiv.org/abs/1606.03498, section 3.4).

The sums of every hidden layer are normalised by their statistics over a reference batch that stays the same. A policy
with random weights then answers to small differences of its input, and perturbed ones do different things (Salimans et
al. 2017, section 2.2). As there, the input at hand has no part in the statistics: so the map is affine, it is folded
into the layer's own weights, and acting costs what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from evorl.networks.torsos import BatchRenormalization, Torso
from evorl.types import Params

EPSILON = 1e-5  # added to variances


def virtually_normalized(network: nn.Module, params: Params, *reference: Any) -> Params:
    """The parameters with which a network acts as if its hidden layers were normalised.

    ``y = (W x - mean) / deviation + b`` for every dense layer and convolution of the torso, where mean and deviation
    are those of ``W x`` over the reference batch, and of convolutions over all places; ``x`` comes from layers
    normalised before. The head is left as it is. So the scale of a hidden kernel does not matter, and a bias says where
    the mean of its feature is.

    Args:
        network: with a ``torso``, of the heads in ``evorl.networks.heads``.
        params: as its ``init`` returned them.
        *reference: its inputs, leaves ``[N, ...]``.
    """

    def normalize(
        next_fn: Callable[..., jax.Array], args: tuple, kwargs: Mapping[str, Any], context: nn.module.InterceptorContext
    ) -> jax.Array:
        module = context.module
        sums = next_fn(*args, **kwargs)
        if not isinstance(module, nn.Dense | nn.Conv) or module.path[:1] != ("torso",):
            return sums
        kernel, bias = (module.get_variable("params", name) for name in ("kernel", "bias"))
        axes = tuple(range(sums.ndim - 1))
        mean, scale = sums.mean(axes), jax.lax.rsqrt(sums.var(axes) + EPSILON)
        module.put_variable("params", "kernel", kernel * scale)
        module.put_variable("params", "bias", bias - (mean - bias) * scale)
        return (sums - mean) * scale + bias

    with nn.intercept_methods(normalize):
        _, folded = network.apply(params, *reference, mutable=["params"])
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(folded))


def check_normalizable(torso: Torso) -> None:
    """Raises ``ValueError``, in words, for a torso that has nothing to normalise, or normalises already."""
    layers = torso.layers
    if torso.layer_norm or "layer_norm" in layers or any(isinstance(x, BatchRenormalization) for x in layers):
        raise ValueError(
            "virtual_batch normalises hidden layers, and agent.network does so too, by layer_norm or batch_renorm: "
            "choose one of the two."
        )
    if not layers or set(layers) == {"flatten"}:
        raise ValueError(
            "virtual_batch normalises hidden layers, and agent.network.torso has none: add one, or set "
            "virtual_batch=null."
        )
