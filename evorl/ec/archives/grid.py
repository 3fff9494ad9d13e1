"""Archive with a grid of cells (Mouret & Clune 2015, https://arxiv.org/abs/1504.04909)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from evorl.config.values import LONGEST_AXIS
from evorl.ec.archives.archive import Archive


class GridArchive(Archive):
    """Archive whose cells are boxes of equal size. The number of cells is the product of the D numbers of bins.

    Attributes:
        bins: list with the number of bins of each of the D dimensions, or with a single number for all of them.
    """

    bins: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = len(self.bins) in (1, self.num_dimensions)
        if not fits or any(not isinstance(n, int) or not 1 <= n <= LONGEST_AXIS for n in self.bins):
            raise ValueError(
                f"bins must be positive integers up to 2^31 - 1, one for each of {self.num_dimensions} dimensions "
                f"or one for all, got {list(self.bins)}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of bins of each dimension."""
        return self.bins if len(self.bins) > 1 else self.bins * self.num_dimensions

    @property
    def num_cells(self) -> int:
        return math.prod(self.shape)

    def cells_of(self, shares: jax.Array) -> jax.Array:
        """Return the cell indices, int32 ``[N]``, of scaled descriptors ``[N, D]``; the last axis varies fastest."""
        bins = jnp.asarray(self.shape, jnp.int32)
        position = jnp.minimum((shares * bins).astype(jnp.int32), bins - 1)
        strides = [math.prod(self.shape[i + 1 :]) for i in range(self.num_dimensions)]
        return (position * jnp.asarray(strides, jnp.int32)).sum(axis=-1, dtype=jnp.int32)
