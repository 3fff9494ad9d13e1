"""The space of several simultaneous choices, which corresponds to Gymnasium's MultiDiscrete and MultiBinary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.space import Space
from evorl.ops.trees import shape_and_dtype


class MultiDiscrete(Space):
    """Arrays of independent choices: entry i is one of ``start[i] .. start[i] + sizes[i] - 1``.

    Args:
        sizes: number of values of each choice, an array with the shape of an element.
        start: smallest value of each choice, a number or an array that broadcasts to that shape.
        dtype: an integer dtype.

    Raises:
        ValueError: a choice has no values, ``start`` does not broadcast, or the dtype cannot represent all values.
    """

    def __init__(self, sizes: Any, start: Any = 0, dtype: Any = np.int32) -> None:
        self._dtype = np.dtype(dtype)
        self.sizes = np.array(sizes, np.int64)
        self.start = np.array(np.broadcast_to(np.asarray(start, np.int64), self.sizes.shape))
        if (self.sizes < 1).any():
            raise ValueError(f"MultiDiscrete needs at least one value per choice, got sizes={sizes}.")
        room, last = np.iinfo(self._dtype), self.start + self.sizes - 1
        if (self.start < room.min).any() or (last > room.max).any():
            raise ValueError(f"{self._dtype} cannot represent all elements of MultiDiscrete({sizes}, start={start}).")
        for array in (self.sizes, self.start):
            array.setflags(write=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element."""
        return self.sizes.shape

    @property
    def dtype(self) -> np.dtype:
        """NumPy dtype of one element."""
        return self._dtype

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """Shape of one element, and its dtype in JAX: 64-bit dtypes become 32-bit, unless JAX enables 64 bits."""
        return shape_and_dtype(self.shape, self.dtype)

    def sample(self, key: jax.Array) -> jax.Array:
        """Return an element with independent, uniformly distributed choices."""
        numbers = jax.random.randint(key, self.shape, 0, self.sizes.astype(np.int32), jnp.int32)
        return (numbers + self.start.astype(np.int32)).astype(self._dtype)

    def contains(self, x: Any) -> jax.Array:
        """Return true where ``x`` is an element; false for a wrong shape, floats and bools."""
        x = jnp.asarray(x)
        batch_ndim = x.ndim - len(self.shape)
        if batch_ndim < 0 or x.shape[batch_ndim:] != self.shape or not np.issubdtype(x.dtype, np.integer):
            return jnp.zeros(x.shape[: max(batch_ndim, 0)], jnp.bool_)
        last = (self.start + self.sizes - 1).astype(np.int32)
        inside = (x >= self.start.astype(np.int32)) & (x <= last)
        return jnp.all(inside, axis=tuple(range(batch_ndim, x.ndim)))

    def _identity(self) -> tuple:
        return (self.shape, self._dtype.str, self.sizes.tobytes(), self.start.tobytes())

    def __repr__(self) -> str:
        start = f", start={self.start.tolist()}" if self.start.any() else ""
        dtype = "" if self._dtype == np.int32 else f", dtype={self._dtype.name}"
        return f"MultiDiscrete({self.sizes.tolist()}{start}{dtype})"
