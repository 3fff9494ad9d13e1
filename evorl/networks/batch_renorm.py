"""Batch renormalisation (Ioffe 2017, https://arxiv.org/abs/1702.03275)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.ops import collectives

# The collection that running statistics are in: beside the parameters, since no gradient moves them.
STATISTICS = "batch_stats"


class BatchRenorm(nn.Module):
    """Features of mean 0 and variance 1, scaled and shifted by what is learned: ``[..., F] -> [..., F]``.

    Where the collection ``STATISTICS`` is mutable, this is training: features are normalised by the statistics of the
    batch (over all devices that share it), corrected towards the running ones as far as the bounds allow
    (algorithm 1), and the running ones follow. Elsewhere, acting and evaluating, the running ones normalise.

    Attributes:
        momentum: share of the running statistics that stays in each batch.
        epsilon: added to variances.
        max_scale: the paper's ``r_max``: the correcting factor is within ``1 / max_scale`` and ``max_scale``.
        max_shift: the paper's ``d_max``: the correcting shift is within ``-max_shift`` and ``max_shift``.
        warmup: batches until the correction begins; it is plain batch normalisation before.
    """

    momentum: float = 0.99
    epsilon: float = 1e-3
    max_scale: float = 3.0
    max_shift: float = 5.0
    warmup: int = 100_000

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        features = x.shape[-1:]
        mean = self.variable(STATISTICS, "mean", jnp.zeros, features)
        variance = self.variable(STATISTICS, "variance", jnp.ones, features)
        num_batches = self.variable(STATISTICS, "num_batches", jnp.zeros, (), jnp.int32)
        scale = self.param("scale", nn.initializers.ones, features)
        bias = self.param("bias", nn.initializers.zeros, features)
        deviation = jnp.sqrt(variance.value + self.epsilon)
        if self.is_initializing() or not self.is_mutable_collection(STATISTICS):
            return (x - mean.value) / deviation * scale + bias
        axes = tuple(range(x.ndim - 1))
        batch_mean = collectives.mean_over_shares(x.mean(axes))
        batch_variance = collectives.mean_over_shares(jnp.square(x - batch_mean).mean(axes))
        batch_deviation = jnp.sqrt(batch_variance + self.epsilon)
        factor = jnp.clip(batch_deviation / deviation, 1.0 / self.max_scale, self.max_scale)
        shift = jnp.clip((batch_mean - mean.value) / deviation, -self.max_shift, self.max_shift)
        is_warm = num_batches.value >= self.warmup
        # No gradient goes through the correction: it is a constant of the batch.
        factor = jax.lax.stop_gradient(jnp.where(is_warm, factor, 1.0))
        shift = jax.lax.stop_gradient(jnp.where(is_warm, shift, 0.0))
        mean.value = self.momentum * mean.value + (1.0 - self.momentum) * batch_mean
        variance.value = self.momentum * variance.value + (1.0 - self.momentum) * batch_variance
        num_batches.value = jnp.minimum(num_batches.value + 1, self.warmup)
        return ((x - batch_mean) / batch_deviation * factor + shift) * scale + bias
