"""Conversion of received states to elements of the observation space, and of actions to message values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.types import PyTreeDict

MAX_STATE = 1e18  # largest absolute value: the running variance of observations stays finite in float32
QUICKLY_SUMMED = 4096  # number of elements below which a sum is faster on one core than on several


class ObservationError(ValueError):
    """Raised for a state that cannot be converted to an element of the observation space."""


def observation_from(state: Any, space: Space, name: str = "state") -> Any:
    """Convert a received ``state``, called ``name`` in errors, to arrays with the structure and dtypes of ``space``.

    Floats for an integer Box are rounded. If the Box is uint8 up to 255 and no float exceeds 1, the state is an image,
    which is first multiplied by 255. An empty state for a Box of shape (1,) becomes 1. Box bounds are not checked.

    Raises:
        ObservationError: the structure, shape or type is wrong, or a number is not finite or out of range.
    """
    if isinstance(space, DictSpace):
        if not isinstance(state, Mapping) or set(state) != set(space.spaces):
            got = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ObservationError(f"{name} must have the entries {', '.join(space.spaces)}; got {got}.")
        return PyTreeDict(
            {key: observation_from(state[key], part, f"{name}.{key}") for key, part in space.spaces.items()}
        )
    if isinstance(space, TupleSpace):
        if not isinstance(state, list) or len(state) != len(space.spaces):
            got = len(state) if isinstance(state, list) else type(state).__name__
            raise ObservationError(f"{name} must be a list of {len(space.spaces)} parts, got {got}.")
        return tuple(observation_from(state[i], part, f"{name}[{i}]") for i, part in enumerate(space.spaces))
    if _is_expected_array(state, space):
        return state
    try:
        array = np.asarray(state)
    except (ValueError, TypeError) as error:
        raise ObservationError(f"{name} cannot be converted to an array: {error}.") from error
    if array.dtype.kind not in "biuf":
        if array.size:
            raise ObservationError(f"{name} must contain numbers, got {array.dtype.name}.")
        array = array.astype(np.float32)
    if array.size == 0 and isinstance(space, Box) and space.shape == (1,):
        return np.ones(1, space.dtype)
    if array.shape != tuple(space.shape):
        raise ObservationError(f"{name} must have the shape {list(space.shape)}, got {list(array.shape)}.")
    if array.dtype.kind == "f" and not (np.abs(array, dtype=np.float64) <= MAX_STATE).all():  # float16 overflows
        what = f"beyond {MAX_STATE:g}" if np.isfinite(array).all() else "that are not finite"
        raise ObservationError(f"{name} contains values {what}: send finite numbers up to {MAX_STATE:g}.")
    if isinstance(space, Discrete | MultiDiscrete):
        end = space.start + (space.n if isinstance(space, Discrete) else space.sizes)
        if not ((space.start <= array) & (array < end)).all():
            raise ObservationError(f"{name} must be from {space.start} to {end - 1}, got {array}.")
        if (array % 1).any():
            raise ObservationError(f"{name} must consist of integers, got {array}.")
    if array.dtype.kind == "f" and np.issubdtype(space.dtype, np.integer):
        is_picture = space.dtype == np.uint8 and isinstance(space, Box) and space.high.max(initial=0) == 255
        array = np.rint(array * 255) if is_picture and array.max(initial=0.0) <= 1.0 else np.rint(array)
    _require_room(array, space.dtype, name)
    return array.astype(space.dtype, copy=False)


def _require_room(array: np.ndarray, dtype: np.dtype, name: str) -> None:
    """Raise ``ObservationError`` if a number would overflow the dtype."""
    if array.dtype == dtype or dtype == np.bool_ or not array.size:
        return
    is_integer = np.issubdtype(dtype, np.integer)
    room = jnp.iinfo(dtype) if is_integer else jnp.finfo(dtype)
    # Python compares these numbers exactly; NumPy would first round the limit of int32 to float32.
    least, most = (int(room.min), int(room.max)) if is_integer else (float(room.min), float(room.max))
    low, high = array.min().item(), array.max().item()
    if low < least or high > most:
        raise ObservationError(f"{name} must be from {least} to {most} ({dtype.name}), got {low} to {high}.")


def _is_expected_array(state: Any, space: Space) -> bool:
    """Return True if a fast check shows that ``state`` is an element of ``space``; False if it needs the full check."""
    if type(state) is not np.ndarray or type(space) is not Box or state.dtype != space.dtype:
        return False
    if state.shape != space.shape or not 0 < state.size < QUICKLY_SUMMED:
        return False
    # If the sum of squares is within the squared limit, so is every number; otherwise check each number.
    return state.dtype.kind in "iu" or (state.dtype.kind == "f" and float(np.vdot(state, state)) <= MAX_STATE**2)


def action_as_sent(action: Any) -> Any:
    """Convert an action to a message value: a number, a list, an array (2 axes or more), or a dict or list of these."""
    if isinstance(action, Mapping):
        return {str(key): action_as_sent(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return [action_as_sent(part) for part in action]
    return action.tolist() if np.ndim(action) < 2 else np.asarray(action)
