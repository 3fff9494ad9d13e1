"""Maps an agent's action, a flat float32 vector, to arrays within the bounds of Boxes, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.space import Box, Space
from evorl.envs.space_bounds import fits_32_bits

MAX_INTEGERS = 2**24  # maximum number of values of an integer dimension; float32 cannot resolve more in [-1, 1]


class NoActionConversion(ValueError):
    """Raised for an action space in which no agent can act; the message states the reason."""


class BoxIntervals:
    """Converts vectors ``[A]`` of ``agent_space`` to arrays of ``boxes``, all Boxes in ``env_space``, and back."""

    def __init__(self, env_space: Space, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        is_whole = np.concatenate([np.full(math.prod(box.shape), not _is_float(box)) for box in boxes])
        if not is_whole.size:
            raise NoActionConversion(f"an action needs at least one number, but the action space is {env_space!r}.")
        bounds = [[np.ravel(end).astype(np.float64) for end in (box.low, box.high)] for box in boxes]
        low, high = (np.concatenate(ends) for ends in zip(*bounds, strict=True))
        count = np.where(is_whole, np.where(is_whole, high, 0.0) - np.where(is_whole, low, 0.0) + 1.0, 1.0)
        if count.max() > MAX_INTEGERS:
            raise NoActionConversion(
                f"a dimension of an action may have at most {MAX_INTEGERS:,} integer values, but one has "
                f"{int(count.max()):,} in {env_space!r}. Use tighter bounds, as in Box(0, 100, dtype=int32), or a "
                "float dtype."
            )
        for box in boxes:
            if not _is_float(box) and not fits_32_bits(box.low, box.high):
                raise NoActionConversion(
                    f"JAX computes in 32 bits, which cannot represent the actions of {box!r}. Use bounds within int32, "
                    "and add an offset inside the environment."
                )
        # A dimension with one finite bound at the limit of its dtype, or of float32, counts as unbounded.
        largest = float(np.finfo(np.float32).max)
        far = np.concatenate(
            [
                np.full(
                    math.prod(box.shape), min(float(jnp.finfo(box.dtype).max), largest) if _is_float(box) else math.inf
                )
                for box in boxes
            ]
        )
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        self._from_low = has_low & ~has_high & (low > -far)
        self._from_high = has_high & ~has_low & (high < far)
        self._is_bounded = has_low & has_high
        self._only_low = np.where(self._from_low, low, 0.0).astype(np.float32)
        self._only_high = np.where(self._from_high, high, 0.0).astype(np.float32)
        self._is_whole, self._count = is_whole, count.astype(np.float32)
        self._low, self._high = (np.where(np.isfinite(x), x, 0.0).astype(np.float32) for x in (low, high))
        with np.errstate(over="ignore"):
            self._range = self._high - self._low
            # low + share * range overflows for very large ranges, and its rounded value may exceed the upper bound.
            is_plain = np.isfinite(self._range) & (self._low + self._range <= self._high)
        self._mixes = self._is_bounded & ~is_plain & ~is_whole
        ends = np.where(self._is_bounded, 1.0, np.inf)
        self.agent_space = Box(-ends, ends)

    def to_env(self, action: Any) -> list[Any]:
        """Convert an agent's ``action`` ``[..., A]`` to one array per Box, ``[..., *shape]`` of the Box's dtype."""
        xp = array_namespace(action)
        action = xp.asarray(action)
        value = action
        if self._is_bounded.any():
            share = (xp.clip(action, -1.0, 1.0) + 1.0) / 2.0
            value = self._where(xp, self._is_bounded, self._in_bounds(xp, share), value)
        if self._from_low.any():
            value = self._where(xp, self._from_low, self._only_low + _softplus(xp, action), value)
        if self._from_high.any():
            value = self._where(xp, self._from_high, self._only_high - _softplus(xp, -action), value)
        return self._split(xp, value)

    def _in_bounds(self, xp: Any, share: Any) -> Any:
        """Return the values at fractions ``share`` of each range; integers are offsets from the lower bound."""
        plain_range = np.where(np.isfinite(self._range), self._range, np.float32(0))
        value = self._low + share * plain_range
        if self._mixes.any():
            mixed = xp.clip(self._low * (1.0 - share) + self._high * share, self._low, self._high)
            value = self._where(xp, self._mixes, mixed, value)
        if self._is_whole.any():
            number = xp.clip(xp.floor(share * self._count), 0.0, self._count - 1.0)
            value = self._where(xp, self._is_whole, number, value)
        return value

    @staticmethod
    def _where(xp: Any, is_chosen: np.ndarray, chosen: Any, otherwise: Any) -> Any:
        return chosen if is_chosen.all() else xp.where(is_chosen, chosen, otherwise)

    def _split(self, xp: Any, value: Any) -> list[Any]:
        arrays, start = [], 0
        for box in self._boxes:
            size = math.prod(box.shape)
            part = value if size == value.shape[-1] else value[..., start : start + size]
            part = part if len(box.shape) == 1 else part.reshape((*value.shape[:-1], *box.shape))
            arrays.append(_as_elements(xp, box, part))
            start += size
        return arrays

    def to_agent(self, leaves: Sequence[Any]) -> Any:
        """Convert one array per Box, ``[..., *shape]``, to an agent's actions ``[..., A]``, float32."""
        xp = array_namespace(*leaves)
        flat = []
        for box, leaf in zip(self._boxes, leaves, strict=True):
            leaf = xp.asarray(leaf)
            leaf = leaf.reshape((*leaf.shape[: leaf.ndim - len(box.shape)], -1))
            if not _is_float(box):  # the offset from the lower bound, which float32 represents exactly
                wide = np.int64 if xp is np else np.int32
                leaf = leaf.astype(wide) - np.ravel(box.low).astype(wide)
            flat.append(leaf.astype(leaf.dtype if leaf.dtype in (np.float32, np.float64) else np.float32))
        value = flat[0] if len(flat) == 1 else xp.concatenate(flat, axis=-1)
        action = value
        if self._is_bounded.any():
            # Scaled by 1/16: in float32, the range itself may overflow, or its inverse underflow.
            low, high = self._low / 16, self._high / 16
            # XLA flushes subnormal numbers to zero: a smaller range would cause a division by zero.
            has_range = self._is_bounded & ~self._is_whole & (high - low >= np.finfo(np.float32).tiny)
            share = (value / 16 - low) / np.where(has_range, high - low, np.float32(1))
            share = self._where(xp, has_range, share, xp.full_like(share, 0.5))
            if self._is_whole.any():
                share = self._where(xp, self._is_whole, (value + 0.5) / self._count, share)
            action = self._where(xp, self._is_bounded, xp.clip(share * 2.0 - 1.0, -1.0, 1.0), action)
        if self._from_low.any():
            action = self._where(
                xp, self._from_low, _inverse_softplus(xp, value - self._only_low, self._only_low), action
            )
        if self._from_high.any():
            action = self._where(
                xp, self._from_high, -_inverse_softplus(xp, self._only_high - value, self._only_high), action
            )
        return action.astype(np.float32)


def _is_float(box: Box) -> bool:
    return bool(jnp.issubdtype(box.dtype, jnp.floating))


def array_namespace(*arrays: Any) -> Any:
    """Return ``jax.numpy`` if one of the arrays is a JAX array, else ``numpy``."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np


def _as_elements(xp: Any, box: Box, value: Any) -> Any:
    """Return ``value`` as an element of ``box``; for integers, ``value`` is the offset from the lower bound.

    JAX arrays have the 32-bit variant of a 64-bit dtype, unless 64 bits are enabled.
    """
    dtype = box.dtype if xp is np else jax.dtypes.canonicalize_dtype(box.dtype)
    if not _is_float(box):
        if dtype == np.bool_:
            return (value + box.low) > 0
        wide = dtype if dtype.itemsize >= 4 else np.dtype(np.int32)
        return (value.astype(wide) + box.low.astype(wide)).astype(dtype)
    if value.dtype == dtype:
        return value
    value = value.astype(dtype)
    is_exact = all(np.array_equal(end.astype(np.float32).astype(box.dtype), end) for end in (box.low, box.high))
    # Rounding to a narrower dtype may exceed the bounds.
    return value if is_exact and dtype.itemsize >= 4 else xp.clip(value, box.low, box.high).astype(dtype)


def _softplus(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def _inverse_softplus(xp: Any, distance: Any, end: np.ndarray) -> Any:
    """Return x with ``softplus(x) = distance``; ``distance`` is first raised to the float32 resolution at ``end``."""
    resolution = np.finfo(np.float32).eps * np.maximum(1.0, np.abs(end)).astype(np.float32)
    distance = xp.maximum(distance, resolution)
    return distance + xp.log(-xp.expm1(-distance))
