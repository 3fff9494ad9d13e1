"""Settings of a torso's layers, and residual blocks for larger torsos: SimBa (Lee et al. 2025,
https://arxiv.org/abs/2410.09754), SimbaV2 (Lee et al. 2025, https://arxiv.org/abs/2502.15280), BroNet (Nauman et al.
2024, https://arxiv.org/abs/2405.16158) and FlashSAC (Kim et al. 2026, https://arxiv.org/abs/2604.04539).

Blocks use the initialization, normalization and activation of their papers, regardless of the torso's settings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.networks.activations import Activation
from evorl.networks.layers import BatchRenorm, Dtype, compute_dtype, dense, he_normal_dense


@dataclasses.dataclass(frozen=True)
class Dense:
    """Settings of a dense layer, followed by the activation.

    Attributes:
        size: number of outputs.
        activation: activation of this layer; ``None`` for that of the torso.
        batch_norm: batch normalization before the activation, ``BatchRenorm(warmup=None)``; the layer has no bias.
        rms_norm: normalize the root mean square of each output vector before the activation.
    """

    size: int
    activation: Activation | None = None
    batch_norm: bool = False
    rms_norm: bool = False


@dataclasses.dataclass(frozen=True)
class BatchRenormalization:
    """Settings of a layer ``BatchRenorm``.

    Attributes:
        warmup: number of initial batches with plain batch normalization; ``None`` means all.
        momentum: weight of the old values when a batch updates the running statistics.
    """

    warmup: int | None = 100_000
    momentum: float = 0.99


class ResidualModule(nn.Module):
    """Base class of residual blocks, ``[..., F] -> [..., F]``, after an optional embedding, ``[..., O] -> [..., F]``.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding; ``None`` for no embedding.
        dtype: dtype in which the layers compute, one of ``DTYPES``; batch normalizations of FlashSAC and norms of
            SimbaV2 are float32.
    """

    num_blocks: int
    size: int | None = None
    dtype: Dtype = "float32"


class SimbaBlocks(ResidualModule):
    """Pre-normalized residual blocks with an inverted bottleneck, then a layer normalization (SimBa, section 4).

    A block is ``x + Dense(F)(relu(Dense(4 F)(LayerNorm(x))))``. The embedding is linear.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.dtype)
        x = x if self.size is None else dense(self.size, orthogonal=True, scale=1.0, dtype=dtype)(x)
        for _ in range(self.num_blocks):
            hidden = nn.relu(he_normal_dense(4 * x.shape[-1], self.dtype)(nn.LayerNorm(dtype=dtype)(x)))
            x = x + he_normal_dense(x.shape[-1], self.dtype)(hidden)
        return nn.LayerNorm(dtype=dtype)(x)


class FlashBlocks(ResidualModule):
    """Residual blocks with an inverted bottleneck and batch normalization, then an RMS normalization (FlashSAC).

    A block is ``x + relu(BatchNorm(Dense(F)(relu(BatchNorm(Dense(4 F)(x))))))``. The embedding is
    ``Dense(size)(BatchNorm(x))``. No dense layer has a bias. Optimizers should have
    ``projection: unit_norm_and_gains``.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.dtype)

        def product(x: jax.Array, size: int) -> jax.Array:
            return dense(size, orthogonal=True, scale=1.0, use_bias=False, dtype=dtype)(x)

        def normalized(x: jax.Array) -> jax.Array:
            return BatchRenorm(epsilon=1e-5, warmup=None)(x)

        x = x if self.size is None else product(normalized(x), self.size)
        for _ in range(self.num_blocks):
            hidden = nn.relu(normalized(product(x, 4 * x.shape[-1])))
            x = x + nn.relu(normalized(product(hidden, x.shape[-1]))).astype(x.dtype)
        return nn.RMSNorm(dtype=dtype)(x)


class BroBlocks(ResidualModule):
    """Residual blocks with a layer normalization after each dense layer (BroNet, section 3).

    A block is ``x + LayerNorm(Dense(F)(relu(LayerNorm(Dense(F)(x)))))``. The embedding is
    ``relu(LayerNorm(Dense(size)(x)))``.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.dtype)

        def normalized(x: jax.Array, size: int) -> jax.Array:
            return nn.LayerNorm(dtype=dtype)(dense(size, orthogonal=True, scale=math.sqrt(2.0), dtype=dtype)(x))

        x = x if self.size is None else nn.relu(normalized(x, self.size))
        for _ in range(self.num_blocks):
            x = x + normalized(nn.relu(normalized(x, x.shape[-1])), x.shape[-1])
        return x


class Scaler(nn.Module):
    """Layer that multiplies each feature by a learned factor (SimbaV2, section 4.1), ``[..., F] -> [..., F]``.

    The factor is ``scale * initial / stored``, where the parameter ``scale`` starts at ``stored``: with the same
    learning rate, a smaller ``stored`` makes the factor change faster.

    Attributes:
        initial: initial value of the factors.
        stored: initial value of the parameter ``scale``.
    """

    initial: float
    stored: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.constant(self.stored), x.shape[-1:])
        return x * (scale * (self.initial / self.stored))


def _of_unit_length(x: jax.Array) -> jax.Array:
    """Scale vectors ``[..., F]`` to Euclidean norm 1; zero vectors are unchanged."""
    # Equal to x / max(norm, 1e-8), with a finite gradient at 0.
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(axis=-1, keepdims=True), 1e-16))


class HypersphereBlocks(ResidualModule):
    """Blocks whose features are vectors of unit norm, and the dense layer of a SimbaV2 head (SimbaV2, section 4).

    A block moves ``x`` towards ``y = unit(Dense(F)(relu(Scaler(Dense(4 F)(x)))))`` by learned fractions: the output is
    ``unit(x + Scaler(y - x))``, where ``unit`` scales to norm 1. The embedding ``unit(Scaler(Dense(unit([x, 3]))))``
    appends a constant so that the length of its input is not lost. The last layer is ``Scaler(Dense(F)(x))``. No dense
    layer has a bias. Optimizers should have ``projection: unit_norm``.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.dtype)

        def product(x: jax.Array, size: int) -> jax.Array:
            return dense(size, orthogonal=True, scale=1.0, use_bias=False, dtype=dtype)(x).astype(jnp.float32)

        x = x.astype(jnp.float32)
        if self.size is not None:
            gain = math.sqrt(2.0 / self.size)
            x = _of_unit_length(jnp.concatenate([x, jnp.full((*x.shape[:-1], 1), 3.0)], axis=-1))
            x = Scaler(gain, gain)(product(x, self.size))
        x, width = _of_unit_length(x), self.size or x.shape[-1]
        gain = math.sqrt(2.0 / width) / 2.0
        for _ in range(self.num_blocks):
            hidden = Scaler(gain, gain)(product(x, 4 * width))
            # The constant prevents vectors of length 0.
            target = _of_unit_length(product(nn.relu(hidden) + 1e-8, width))
            x = _of_unit_length(x + Scaler(1.0 / (self.num_blocks + 1), 1.0 / math.sqrt(width))(target - x))
        return Scaler(1.0, 1.0)(product(x, width)).astype(dtype or jnp.float32)


@dataclasses.dataclass(frozen=True)
class ResidualBlocks:
    """Settings of residual blocks in a torso.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding before the blocks; without it (``None``), the blocks keep the width of the input.
    """

    num_blocks: int
    size: int | None = None

    module: ClassVar[type[ResidualModule]]


class Simba(ResidualBlocks):
    """Settings of ``SimbaBlocks``."""

    module = SimbaBlocks


class Hypersphere(ResidualBlocks):
    """Settings of ``HypersphereBlocks``."""

    module = HypersphereBlocks


class Bro(ResidualBlocks):
    """Settings of ``BroBlocks``."""

    module = BroBlocks


class Flash(ResidualBlocks):
    """Settings of ``FlashBlocks``."""

    module = FlashBlocks


# Residual blocks by their name in a list of layers.
RESIDUAL_BLOCKS: dict[str, type[ResidualBlocks]] = {"simba": Simba, "simba_v2": Hypersphere, "bro": Bro, "flash": Flash}


def with_embeddings(layers: Sequence[Any]) -> tuple[Any, ...]:
    """Merge dense layers with default settings into directly following residual blocks, as their embeddings."""
    merged: list[Any] = []
    for layer in layers:
        before = merged[-1] if merged else None
        if isinstance(layer, ResidualBlocks) and layer.size is None and before == Dense(getattr(before, "size", 0)):
            layer = dataclasses.replace(layer, size=merged.pop().size)
        merged.append(layer)
    return tuple(merged)


def has_statistics(layer: Any) -> bool:
    """Return True if the layer has running batch statistics."""
    return isinstance(layer, BatchRenormalization | Flash) or (isinstance(layer, Dense) and layer.batch_norm)
