"""Spaces of observations and actions, with exact shape, dtype and bounds.

A space is immutable, and compared and hashed by value: it may be a static argument of a jitted function. Its elements
are observations or actions of a single environment, without batch axes. For a batch of samples, ``vmap`` ``sample``.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.space_bounds import (
    check_size,
    elements_within,
    filled_bound,
    fits_32_bits,
    known_bound,
    require_int32,
    require_whole,
)
from evorl.ops.trees import shape_and_dtype
from evorl.types import ByValue, PyTreeDict, is_entry_name

GOAL_KEYS = frozenset({"observation", "achieved_goal", "desired_goal"})  # keys of an observation with a goal
ACTION_MASK = "action_mask"  # entry of a dict observation, ``[n]``: nonzero for the allowed discrete actions


class Space(ByValue, abc.ABC):
    """The set of valid values of an observation or an action."""

    @property
    @abc.abstractmethod
    def shape(self) -> Any:
        """Shape of one element; for a dict or tuple space, a dict or tuple of shapes."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """NumPy dtype of one element; for a dict or tuple space, a dict or tuple of dtypes."""

    @property
    def spec(self) -> Any:
        """``jax.ShapeDtypeStruct`` of one element with its dtype in JAX; for a dict or tuple space, a dict or tuple."""
        return shape_and_dtype(self.shape, self.dtype)

    @abc.abstractmethod
    def sample(self, key: jax.Array) -> Any:
        """Return one random element, drawn with ``key``, a scalar key (typed or legacy)."""

    @abc.abstractmethod
    def contains(self, x: Any) -> jax.Array:
        """Return bools, true where ``x`` is an element; they have the leading (batch) axes of ``x``."""

    def zeros(self, batch_shape: tuple[int, ...] = ()) -> Any:
        """Return zeros with the shape and dtype of an element, with leading axes ``batch_shape``."""
        return jax.tree.map(lambda s: jnp.zeros((*batch_shape, *s.shape), s.dtype), self.spec)


class Box(Space):
    """Arrays within ``[low, high]``, bounds included; a bound may be infinite.

    Args:
        low: lower bound, a number or an array that broadcasts to ``shape``; stored as a NumPy array.
        high: upper bound, in the same form.
        shape: shape of an element; by default the broadcast shape of the bounds.
        dtype: any real dtype. Bounds beyond the range of an integer dtype become its limits. Bounds beyond the range of
            a float dtype, or of float32, become infinite. ``sample`` raises ``ValueError`` for integers beyond 32 bits.

    Raises:
        ValueError: a lower bound exceeds its upper bound; the bounds exclude every number of the dtype; a bound is NaN
            or traced, or does not broadcast; ``shape`` has invalid axes or is too large; or the dtype is not real.
    """

    def __init__(self, low: Any, high: Any, shape: Sequence[int] | None = None, dtype: Any = jnp.float32) -> None:
        self._dtype = np.dtype(dtype)
        if not any(jnp.issubdtype(self._dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
            raise ValueError(f"Box needs a real dtype, such as float32 or uint8; got {str(dtype)[:40]!r}.")
        low, high = known_bound(low, "low"), known_bound(high, "high")
        require_whole("the axes of a Box's shape", () if shape is None else shape)
        shape = check_size(np.broadcast_shapes(low.shape, high.shape) if shape is None else tuple(map(int, shape)))
        self.low = filled_bound(low, shape, self._dtype, "low")
        self.high = filled_bound(high, shape, self._dtype, "high")
        if np.any(self.low > self.high):
            raise ValueError(f"Box needs low <= high everywhere, got low={low} and high={high}.")
        self._key = (shape, self._dtype.str, self.low.tobytes(), self.high.tobytes())

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def is_bounded(self) -> bool:
        """True if every bound is finite."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def sample(self, key: jax.Array) -> jax.Array:
        """Return an element: uniform between finite bounds, exponential from a single bound, otherwise normal."""
        if self._dtype == np.bool_ or np.issubdtype(self._dtype, np.integer):
            return sample_integers(key, self.low, self.high)
        return self._sample_floats(key).astype(jax.dtypes.canonicalize_dtype(self._dtype))

    def _sample_floats(self, key: jax.Array) -> jax.Array:
        has_low, has_high = np.isfinite(self.low), np.isfinite(self.high)
        low, high = np.where(has_low, self.low, 0), np.where(has_high, self.high, 0)
        compute = jax.dtypes.canonicalize_dtype(jnp.promote_types(self._dtype, jnp.float32))
        uniform_key, normal_key, exponential_key = jax.random.split(key, 3)
        u = jax.random.uniform(uniform_key, self.shape, compute)
        # This form avoids high - low, which may overflow.
        value = u * high.astype(compute) + (1 - u) * low.astype(compute)
        if not self.is_bounded:
            tail = jax.random.exponential(exponential_key, self.shape, compute)
            value = jnp.where(has_low & ~has_high, low + tail, value)
            value = jnp.where(~has_low & has_high, high - tail, value)
            value = jnp.where(~has_low & ~has_high, jax.random.normal(normal_key, self.shape, compute), value)
        return jnp.clip(value, self.low.astype(compute), self.high.astype(compute))

    def contains(self, x: Any) -> jax.Array:
        """Return true where ``x`` is within the bounds; false for a wrong shape, NaN, and floats in integer Boxes."""
        number = jnp.number if jnp.issubdtype(self._dtype, jnp.floating) else jnp.integer
        return elements_within(x, self.low, self.high, (jnp.bool_, number))

    def _identity(self) -> tuple:
        return self._key

    def __repr__(self) -> str:
        low, high = (b.flat[0] if b.size and np.all(b == b.flat[0]) else b.tolist() for b in (self.low, self.high))
        return f"Box(low={low}, high={high}, shape={self.shape}, dtype={self._dtype.name})"


class Discrete(Space):
    """The integers ``start .. start + n - 1``, int32 scalars.

    Args:
        n: number of elements, at least 1.
        start: the smallest element.

    Raises:
        ValueError: ``n`` is less than 1 or too large, a number is a fraction, or an element is out of int32's range.
    """

    def __init__(self, n: int, start: int = 0) -> None:
        require_whole("n and start of Discrete", n, start)
        (self.n,), self.start = check_size((max(0, int(n)),)), int(start)
        if self.n < 1:
            raise ValueError(f"Discrete needs at least one element, got n={n}.")
        require_int32("Discrete", self.start, self.start + self.n - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Always ``()``."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """Always int32."""
        return np.dtype(np.int32)

    def sample(self, key: jax.Array) -> jax.Array:
        """Return a uniformly distributed element."""
        drawn = jax.random.randint(key, (), 0, self.n, jnp.int32)
        return drawn + self.start if self.start else drawn

    def contains(self, x: Any) -> jax.Array:
        """Return true where ``x`` is one of the integers; floats and bools are never elements."""
        return elements_within(x, np.array(self.start), np.array(self.start + self.n - 1), (jnp.integer,))

    def _identity(self) -> tuple:
        return (self.n, self.start)

    def __repr__(self) -> str:
        return f"Discrete({self.n})" if self.start == 0 else f"Discrete({self.n}, start={self.start})"


class DictSpace(Space):
    """A dict of spaces, sorted by key; an element is a ``PyTreeDict`` with the same keys.

    Raises:
        ValueError: a key is not a string, or is the name of a method of ``PyTreeDict``, such as ``items``.
    """

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        for name in spaces:
            if not is_entry_name(name):
                kind = "the name of a method of dict" if isinstance(name, str) else f"of type {type(name).__name__}"
                raise ValueError(
                    f"a dict of spaces has an entry {name!r}, {kind}: rename it, for example to {str(name) + '_'!r}, "
                    "in the environment or a wrapper."
                )
        self.spaces = PyTreeDict(sorted(spaces.items()))

    @property
    def shape(self) -> PyTreeDict:
        return PyTreeDict({name: space.shape for name, space in self.spaces.items()})

    @property
    def dtype(self) -> PyTreeDict:
        return PyTreeDict({name: space.dtype for name, space in self.spaces.items()})

    @property
    def spec(self) -> PyTreeDict:
        return PyTreeDict({name: space.spec for name, space in self.spaces.items()})

    def sample(self, key: jax.Array) -> PyTreeDict:
        """Return an element with independently sampled entries."""
        keys = jax.random.split(key, len(self.spaces))
        return PyTreeDict({name: space.sample(keys[i]) for i, (name, space) in enumerate(self.spaces.items())})

    def contains(self, x: Any) -> jax.Array:
        """Return true where every entry is in its space; a scalar false unless ``x`` is a mapping with these keys."""
        if not isinstance(x, Mapping) or set(x) != set(self.spaces):
            return jnp.asarray(False)
        return _all_of(space.contains(x[name]) for name, space in self.spaces.items())

    def __getitem__(self, name: str) -> Space:
        return self.spaces[name]

    def _identity(self) -> tuple:
        return tuple(self.spaces.items())

    def __repr__(self) -> str:
        return f"DictSpace({dict(self.spaces)!r})"


class TupleSpace(Space):
    """A tuple of spaces; an element is a tuple of their elements."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = tuple(spaces)

    @property
    def shape(self) -> tuple:
        return tuple(space.shape for space in self.spaces)

    @property
    def dtype(self) -> tuple:
        return tuple(space.dtype for space in self.spaces)

    @property
    def spec(self) -> tuple:
        return tuple(space.spec for space in self.spaces)

    def sample(self, key: jax.Array) -> tuple:
        """Return an element with independently sampled entries."""
        keys = jax.random.split(key, len(self.spaces))
        return tuple(space.sample(keys[i]) for i, space in enumerate(self.spaces))

    def contains(self, x: Any) -> jax.Array:
        """Return true where every entry is in its space; a scalar false for another type or length of ``x``."""
        if not isinstance(x, tuple | list) or len(x) != len(self.spaces):
            return jnp.asarray(False)
        return _all_of(space.contains(item) for space, item in zip(self.spaces, x, strict=True))

    def __getitem__(self, index: int) -> Space:
        return self.spaces[index]

    def _identity(self) -> tuple:
        return self.spaces

    def __repr__(self) -> str:
        return f"TupleSpace({self.spaces!r})"


def leaf_spaces(space: Space) -> list[Any]:
    """Return the innermost spaces of nested dict and tuple spaces, in the order of the leaves of ``space.spec``."""
    return leaf_values(space, space)  # the entries of a nested space have the structure of its elements


def leaf_values(space: Space, value: Any) -> list[Any]:
    """Return the arrays of ``value``, an element of ``space``, in the order of ``leaf_spaces``."""
    if isinstance(space, DictSpace):
        return [leaf for name, member in space.spaces.items() for leaf in leaf_values(member, value[name])]
    if isinstance(space, TupleSpace):
        return [leaf for member, item in zip(space.spaces, value, strict=True) for leaf in leaf_values(member, item)]
    return [value]


def _all_of(conditions: Any) -> jax.Array:
    return functools.reduce(jnp.logical_and, conditions, jnp.asarray(True))


def sample_integers(key: jax.Array, low: np.ndarray, high: np.ndarray) -> jax.Array:
    """Sample integers uniformly in ``[low, high]``. Raises ``ValueError`` if JAX has no dtype for all of them."""
    if not fits_32_bits(low, high):
        raise ValueError(f"JAX's 32 bits cannot represent all numbers from {low} to {high}: use bounds within int32.")
    low64, high64 = low.astype(np.int64), high.astype(np.int64)
    span = np.minimum(high64 - low64 + 1, 2**32 - 1).astype(np.uint32)
    offset = jax.random.randint(key, low.shape, np.zeros_like(span), span, jnp.uint32)
    if (is_whole := high64 - low64 == 2**32 - 1).any():  # uint32 cannot represent the span; randint uses keys 0 and 1
        offset = jnp.where(is_whole, jax.random.bits(jax.random.fold_in(key, 2), low.shape, jnp.uint32), offset)
    numbers = offset.astype(jnp.int32) + low64.astype(np.int32)  # the same bits as in uint32, which ONNX cannot add
    return numbers.astype(jax.dtypes.canonicalize_dtype(low.dtype))
