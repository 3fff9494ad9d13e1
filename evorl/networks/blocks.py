"""Settings of layers of a torso, and residual blocks of them that let torsos grow: SimBa (Lee et al. 2025,
https://arxiv.org/abs/2410.09754) and BroNet (Nauman et al. 2024, https://arxiv.org/abs/2405.16158).

Blocks use the initial weights, normalization and activation of their papers, independent of the torso's settings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax

from evorl.networks.activations import Activation
from evorl.networks.layers import Dtype, compute_dtype, dense, he_normal_dense


@dataclasses.dataclass(frozen=True)
class Dense:
    """Settings of a dense layer, followed by the activation.

    Attributes:
        size: number of outputs.
        activation: activation of this layer; ``None`` for that of the torso.
        batch_norm: normalize over the batch before the activation, see ``BatchRenorm``; the layer then has no bias.
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
        warmup: number of initial batches with plain batch normalization; ``None`` for all.
        momentum: decay rate of the running statistics per batch.
    """

    warmup: int | None = 100_000
    momentum: float = 0.99


class SimbaBlocks(nn.Module):
    """Pre-normalized residual blocks with an inverted bottleneck, and a last layer normalization (SimBa, section 4).

    A block is ``x + Dense(F)(relu(Dense(4 F)(LayerNorm(x))))``. The embedding is linear.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding; ``None`` for no embedding.
        dtype: one of ``DTYPES``, in which the layers compute.
    """

    num_blocks: int
    size: int | None = None
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.dtype)
        x = x if self.size is None else dense(self.size, orthogonal=True, scale=1.0, dtype=dtype)(x)
        for _ in range(self.num_blocks):
            hidden = nn.relu(he_normal_dense(4 * x.shape[-1], self.dtype)(nn.LayerNorm(dtype=dtype)(x)))
            x = x + he_normal_dense(x.shape[-1], self.dtype)(hidden)
        return nn.LayerNorm(dtype=dtype)(x)


class BroBlocks(nn.Module):
    """Residual blocks with a layer normalization after each dense layer (BroNet, section 3).

    A block is ``x + LayerNorm(Dense(F)(relu(LayerNorm(Dense(F)(x)))))``. The embedding is
    ``relu(LayerNorm(Dense(size)(x)))``.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding; ``None`` for no embedding.
        dtype: one of ``DTYPES``, in which the layers compute.
    """

    num_blocks: int
    size: int | None = None
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.dtype)

        def normalized(x: jax.Array, size: int) -> jax.Array:
            return nn.LayerNorm(dtype=dtype)(dense(size, orthogonal=True, scale=math.sqrt(2.0), dtype=dtype)(x))

        x = x if self.size is None else nn.relu(normalized(x, self.size))
        for _ in range(self.num_blocks):
            x = x + normalized(nn.relu(normalized(x, x.shape[-1])), x.shape[-1])
        return x


@dataclasses.dataclass(frozen=True)
class ResidualBlocks:
    """Settings of residual blocks in a torso.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding before them; ``None`` for no embedding, with the width of the input.
    """

    num_blocks: int
    size: int | None = None

    module: ClassVar[type[SimbaBlocks | BroBlocks]]


@dataclasses.dataclass(frozen=True)
class Simba(ResidualBlocks):
    """Settings of ``SimbaBlocks``."""

    module = SimbaBlocks


@dataclasses.dataclass(frozen=True)
class Bro(ResidualBlocks):
    """Settings of ``BroBlocks``."""

    module = BroBlocks


def with_embeddings(layers: Sequence[Any]) -> tuple[Any, ...]:
    """Merge dense layers without further settings into directly following residual blocks, as their embeddings."""
    merged: list[Any] = []
    for layer in layers:
        before = merged[-1] if merged else None
        if isinstance(layer, ResidualBlocks) and layer.size is None and before == Dense(getattr(before, "size", 0)):
            layer = dataclasses.replace(layer, size=merged.pop().size)
        merged.append(layer)
    return tuple(merged)


def has_statistics(layer: Any) -> bool:
    """Return true if the layer has running statistics of batches."""
    return isinstance(layer, BatchRenormalization) or (isinstance(layer, Dense) and layer.batch_norm)
