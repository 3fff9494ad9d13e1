"""Residual blocks of dense layers that let torsos grow: SimBa (Lee et al. 2025, https://arxiv.org/abs/2410.09754) and
BroNet (Nauman et al. 2024, https://arxiv.org/abs/2405.16158).

Initial weights, normalization and activation are those of the papers, whatever the other layers of a torso use.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import flax.linen as nn
import jax

from evorl.networks.layers import dense, he_normal_dense


class SimbaBlocks(nn.Module):
    """Pre-normalized residual blocks with an inverted bottleneck, and a last layer normalization (SimBa, section 4).

    A block is ``x + Dense(F)(relu(Dense(4 F)(LayerNorm(x))))``. The embedding is linear.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding; ``None`` for no embedding.
    """

    num_blocks: int
    size: int | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x if self.size is None else dense(self.size, orthogonal=True, scale=1.0)(x)
        for _ in range(self.num_blocks):
            hidden = nn.relu(he_normal_dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
            x = x + he_normal_dense(x.shape[-1])(hidden)
        return nn.LayerNorm()(x)


class BroBlocks(nn.Module):
    """Residual blocks with a layer normalization after each dense layer (BroNet, section 3).

    A block is ``x + LayerNorm(Dense(F)(relu(LayerNorm(Dense(F)(x)))))``. The embedding is
    ``relu(LayerNorm(Dense(size)(x)))``.

    Attributes:
        num_blocks: number of residual blocks.
        size: width of the embedding; ``None`` for no embedding.
    """

    num_blocks: int
    size: int | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def normalized(x: jax.Array, size: int) -> jax.Array:
            return nn.LayerNorm()(dense(size, orthogonal=True, scale=math.sqrt(2.0))(x))

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
