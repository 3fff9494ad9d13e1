"""The space of several simultaneous choices, which corresponds to Gymnasium's MultiDiscrete and MultiBinary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.space import Space, sample_integers
from evorl.envs.space_bounds import elements_within, require_int32, require_whole


class MultiDiscrete(Space):
    """Arrays of independent choices: entry i is one of ``start[i] .. start[i] + sizes[i] - 1``.

    Args:
        sizes: number of values of each choice, an array with the shape of an element.
        start: smallest value of each choice, a number or an array that broadcasts to that shape.
        dtype: an integer dtype; the values must be within int32, too.

    Raises:
        ValueError: a number is a fraction, a choice has no values, ``start`` does not broadcast, or ``dtype`` is not
            integer or is too narrow.
    """

    def __init__(self, sizes: Any, start: Any = 0, dtype: Any = np.int32) -> None:
        self._dtype = np.dtype(dtype)
        require_whole("sizes and start of MultiDiscrete", sizes, start)
        self.sizes = np.array(sizes, np.int64)
        self.start = np.array(np.broadcast_to(np.asarray(start, np.int64), self.sizes.shape))
        if (self.sizes < 1).any():
            raise ValueError(f"MultiDiscrete needs at least one value per choice, got sizes={sizes}.")
        room, last = np.iinfo(self._dtype), self.start + self.sizes.astype(object) - 1
        if np.any(self.start < room.min) or np.any(last > room.max):
            raise ValueError(f"{self._dtype} cannot represent MultiDiscrete({sizes}, {start}): use a wider dtype.")
        require_int32("MultiDiscrete", self.start, last)
        for array in (self.sizes, self.start):
            array.setflags(write=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes.shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    def sample(self, key: jax.Array) -> jax.Array:
        """Return an element with independent, uniformly distributed choices."""
        numbers = sample_integers(key, self.start, self.start + self.sizes - 1)
        return numbers.astype(jax.dtypes.canonicalize_dtype(self._dtype))

    def contains(self, x: Any) -> jax.Array:
        """Return true where ``x`` is an element; false for a wrong shape, floats and bools."""
        return elements_within(x, self.start, self.start + self.sizes - 1, (jnp.integer,))

    def _identity(self) -> tuple:
        return (self.shape, self._dtype.str, self.sizes.tobytes(), self.start.tobytes())

    def __repr__(self) -> str:
        start = f", start={self.start.tolist()}" if self.start.any() else ""
        dtype = "" if self._dtype == np.int32 else f", dtype={self._dtype.name}"
        return f"MultiDiscrete({self.sizes.tolist()}{start}{dtype})"
