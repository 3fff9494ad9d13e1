"""Virtual batch normalization (Salimans et al. 2016, https://arxiv.org/abs/1606.03498, section 3.4).

The pre-activations of every hidden layer are normalized by their statistics over a fixed reference batch. A policy with
random weights is then sensitive to small differences of its input, and perturbed policies behave differently (Salimans
et al. 2017, section 2.2). The current input does not affect the statistics, so the normalization is affine and is
folded into the layer's weights: acting costs nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.blocks import ResidualBlocks, has_statistics
from evorl.networks.torsos import NORMALIZATIONS, Torso
from evorl.types import Params

EPSILON = 1e-5  # added to variances


def virtually_normalized(network: nn.Module, params: Params, *reference: Any) -> Params:
    """Return parameters that make a network act as if its hidden layers were normalized.

    ``y = (W x - mean) / deviation + b`` for every dense layer and convolution of the torso, with mean and deviation of
    ``W x`` over the reference batch and, for convolutions, over all positions; ``x`` is the output of the
    preceding, normalized layers. The head is unchanged. The scale of a hidden kernel therefore has no effect, and a
    bias is the mean of ``y`` over the batch.

    Args:
        network: a network of ``evorl.networks.heads`` with a ``torso``.
        params: parameters as returned by the network's ``init``.
        *reference: reference batch of the network's inputs, leaves ``[N, ...]``.

    Raises:
        ValueError: a dense layer or convolution of the torso has no bias.
    """

    def normalize(
        next_fn: Callable[..., jax.Array], args: tuple, kwargs: Mapping[str, Any], context: nn.module.InterceptorContext
    ) -> jax.Array:
        module = context.module
        sums = next_fn(*args, **kwargs)
        if not isinstance(module, nn.Dense | nn.Conv) or module.path[:1] != ("torso",):
            return sums
        sums = sums.astype(jnp.float32)  # statistics are float32 in any network
        kernel, bias = (module.get_variable("params", name) for name in ("kernel", "bias"))
        if bias is None:
            raise ValueError(
                f"virtual_batch folds statistics into biases, but the layer {'/'.join(module.path)} lacks one: set "
                "use_bias=True in your layer, or virtual_batch=null."
            )
        axes = tuple(range(sums.ndim - 1))
        mean, scale = sums.mean(axes), jax.lax.rsqrt(sums.var(axes) + EPSILON)
        module.put_variable("params", "kernel", kernel * scale)
        module.put_variable("params", "bias", bias - (mean - bias) * scale)
        return (sums - mean) * scale + bias

    with nn.intercept_methods(normalize):
        _, folded = network.apply(params, *reference, mutable=["params"])
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(folded))


def check_normalizable(torso: Torso) -> None:
    """Raise ``ValueError`` if a torso has no hidden layers, or already normalizes them, as residual blocks do."""
    layers = torso.layers
    normalizing = [x for x in layers if x in NORMALIZATIONS or has_statistics(x) or isinstance(x, ResidualBlocks)]
    normalizing += [x for x in layers if getattr(x, "rms_norm", False)]
    if torso.layer_norm or normalizing:
        raise ValueError(
            "virtual_batch normalizes hidden layers, but agent.network already does, by rms_norm, batch_norm, "
            "layer_norm or batch_renorm, or by blocks such as simba: remove these, or set virtual_batch=null."
        )
    if not layers or set(layers) == {"flatten"}:
        raise ValueError(
            "virtual_batch normalizes hidden layers, but agent.network.torso has no layer with weights: add one, or "
            "set virtual_batch=null."
        )
