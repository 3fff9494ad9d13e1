"""Validates the shapes and bounds of spaces; a shape is checked before arrays of this shape are allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MAX_NUMBERS = 2**28  # maximum size of one observation or action: 1 GB of float32


def known_bound(bound: Any, name: str) -> np.ndarray:
    """Return a bound as a NumPy array; raise ``ValueError`` for a traced value. ``name`` is ``"low"`` or ``"high"``."""
    try:
        return np.asarray(bound)
    except jax.errors.TracerArrayConversionError:
        raise ValueError(
            f"Box got a traced array in {name}: its bounds must be known before tracing. Build the space outside of "
            "the jitted function, or with numpy in place of jax.numpy."
        ) from None


def filled_bound(value: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, name: str) -> np.ndarray:
    """Return a bound as a read-only array of ``shape`` and ``dtype``; ``name`` is ``"low"`` or ``"high"``.

    A bound beyond the range of an integer dtype becomes the limit of the dtype. A bound beyond the range of a float
    dtype, or of float32, in which JAX computes, becomes infinite.

    Raises:
        ValueError: the bound has a NaN, does not broadcast to ``shape``, or excludes every number of the dtype.
    """
    if np.any(np.isnan(value.astype(np.float64))):
        raise ValueError(f"Box got a NaN in {name}: {value}.")
    kind, limit, is_beyond = dtype, value, np.zeros(())
    if np.issubdtype(dtype, np.integer):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        value = value.astype(object)
        is_beyond, value = value > most if name == "low" else value < least, np.clip(value, least, most)
    elif jnp.issubdtype(dtype, jnp.floating):
        kind = dtype if dtype.itemsize < 4 else np.dtype(np.float32)
        with np.errstate(over="ignore"):
            narrow = value.astype(np.float64).astype(kind).astype(np.float64)
        value = np.where(np.isinf(narrow), narrow, value) if np.isinf(narrow).any() else value
        is_beyond = narrow == (np.inf if name == "low" else -np.inf)
    if np.any(is_beyond):
        raise ValueError(
            f"Box has no element: {name}={limit} excludes every number of {kind.name}. Use bounds within the range of "
            f"{kind.name}, and scale or shift the numbers inside the environment."
        )
    try:
        bound = np.array(np.broadcast_to(value, shape), dtype=dtype)
    except ValueError:
        raise ValueError(f"Box {name} of shape {value.shape} does not broadcast to shape {shape}.") from None
    bound.setflags(write=False)
    return bound


def fits_32_bits(low: np.ndarray, high: np.ndarray) -> bool:
    """Return True if integer or bool bounds fit into the dtype in which JAX stores them, such as int32 for int64."""
    if low.dtype.itemsize < 8:
        return True
    room = np.iinfo(jax.dtypes.canonicalize_dtype(low.dtype))
    return bool(np.all(low >= room.min) and np.all(high <= room.max))


def elements_within(x: Any, low: np.ndarray, high: np.ndarray, kinds: Sequence[Any]) -> jax.Array:
    """Return bools, true where the elements ``[..., *shape]`` of ``x`` are within the bounds, arrays of this shape.

    They are false for a wrong shape, and for a dtype outside of ``kinds``, such as ``jnp.integer``. Integers of any
    dtype are compared exactly.
    """
    x = x if isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.integer) else jnp.asarray(x)
    batch_ndim = x.ndim - low.ndim
    is_of_kind = any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
    if batch_ndim < 0 or x.shape[batch_ndim:] != low.shape or not is_of_kind:
        return jnp.zeros(x.shape[: max(batch_ndim, 0)], jnp.bool_)
    if np.issubdtype(x.dtype, np.integer) and np.issubdtype(low.dtype, np.integer):
        room = np.iinfo(x.dtype)  # a common dtype may need 64 bits, which JAX lacks
        first, last = (np.array(np.clip(bound.astype(object), room.min, room.max), x.dtype) for bound in (low, high))
        inside = (x >= first) & (x <= last) & (low <= room.max) & (high >= room.min)
    else:
        common = jax.dtypes.canonicalize_dtype(jnp.promote_types(x.dtype, low.dtype))
        x = x.astype(common)
        inside = (x >= low.astype(common)) & (x <= high.astype(common))
    return jnp.all(inside, axis=tuple(range(batch_ndim, x.ndim)))


def require_int32(name: str, first: Any, last: Any) -> None:
    """Raise ``ValueError`` unless the integers ``first`` to ``last`` fit into int32; ``name`` is the kind of space."""
    info = np.iinfo(np.int32)
    if np.any(np.asarray(first) < info.min) or np.any(np.asarray(last) > info.max):
        raise ValueError(
            f"{name} has int32 elements, from {info.min:,} to {info.max:,}, but got {first} to {last}: use "
            "a start near 0, and add an offset inside the environment."
        )


def require_whole(name: str, *numbers: Any) -> None:
    """Raise ``ValueError`` unless numbers, or arrays of numbers, are integers or integral floats, and not bools."""
    for value in numbers:
        array = np.asarray(value)
        kind = array.dtype.kind  # O: integers beyond 64 bits
        if kind not in "iufO" or (kind == "f" and not np.all(np.isfinite(array) & (array == np.trunc(array)))):
            raise ValueError(f"{name} must be integers, got {value!r}.")


def check_size(shape: Sequence[int]) -> tuple[int, ...]:
    """Return ``shape`` as a tuple; raise ``ValueError`` for a negative axis, or a product above ``MAX_NUMBERS``."""
    if any(size < 0 for size in shape):
        raise ValueError(f"axes of a shape must be at least 0, got {list(shape)}.")
    if math.prod(shape) > MAX_NUMBERS:
        raise ValueError(
            f"a space of {math.prod(shape):,} numbers or choices, {list(shape)}, exceeds the limit of {MAX_NUMBERS:,}: "
            "use smaller axes or fewer choices."
        )
    return tuple(shape)
