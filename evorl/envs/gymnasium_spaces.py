"""Converts Gymnasium's spaces to evorl spaces. Imports Gymnasium on first use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace

JAX_DTYPES = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}  # JAX's default precision


def space_of(space: Any) -> Space:
    """Convert Gymnasium's observation space to an evorl space; float64 becomes float32, int64 becomes int32.

    Elements keep their values: discrete choices that start at 3 remain 3, 4 and so on. ``evorl.envs.wrappers.encoding``
    one-hot encodes them for networks. MultiBinary becomes an int8 ``Box`` of zeros and ones.

    Raises:
        ValueError: the space is not Discrete, MultiDiscrete, MultiBinary, Box, or a tuple or dict of these.
    """
    import gymnasium.spaces as spaces

    if isinstance(space, spaces.Dict):
        return DictSpace({name: space_of(member) for name, member in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return TupleSpace([space_of(member) for member in space.spaces])
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return Box(0, 1, space.shape, np.int8)
    if isinstance(space, spaces.Box):
        dtype = np.float32 if space.dtype == np.float64 else np.int32 if space.dtype == np.int64 else space.dtype
        return Box(space.low, space.high, space.shape, dtype)
    raise ValueError(f"observations must be numbers or arrays, or dicts and tuples of these; the space is {space}.")


def action_space_of(space: Any) -> tuple[Space, Callable[[Any], Any]]:
    """Convert Gymnasium's action space; return the evorl space, and a function that converts actions to Gymnasium's.

    float64 becomes float32, and int64 becomes int32 if the bounds are within int32. The bounds of a Box are rounded
    inwards, so that every element of the evorl space is also an element of Gymnasium's space; bounds beyond the range
    of float32 become infinite. The returned function takes batches ``[B, ...]``.

    Raises:
        ValueError: the space is not Discrete, MultiDiscrete, MultiBinary, Box, or a tuple or dict of these.
    """
    import gymnasium.spaces as spaces

    if isinstance(space, spaces.Dict):
        members = {name: action_space_of(member) for name, member in space.spaces.items()}
        converts = {name: convert for name, (_, convert) in members.items()}
        converted: Space = DictSpace({name: member for name, (member, _) in members.items()})
        return converted, lambda actions: {name: convert(actions[name]) for name, convert in converts.items()}
    if isinstance(space, spaces.Tuple):
        parts = [action_space_of(member) for member in space.spaces]
        converted = TupleSpace([member for member, _ in parts])
        return converted, lambda actions: tuple(convert(x) for (_, convert), x in zip(parts, actions, strict=True))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start)), functools.partial(np.asarray, dtype=space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        converted = MultiDiscrete(space.nvec, space.start, JAX_DTYPES.get(space.dtype.name, space.dtype))
        return converted, functools.partial(np.asarray, dtype=space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete(np.full(space.shape, 2), dtype=np.int8), functools.partial(np.asarray, dtype=space.dtype)
    if isinstance(space, spaces.Box):
        return _action_box(space)
    raise ValueError(
        "agents support Discrete, MultiDiscrete, MultiBinary, Box, and tuples and dicts of these; this "
        f"environment's action space is {space}."
    )


def batch_rows(space: Space, actions: Any) -> Sequence[Any]:
    """Split converted actions ``[B, ...]`` into B elements of Gymnasium's space; ``space`` is the evorl space."""
    if isinstance(space, DictSpace):
        parts = {name: batch_rows(member, actions[name]) for name, member in space.spaces.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if isinstance(space, TupleSpace):
        members = zip(space.spaces, actions, strict=True)
        return list(zip(*(batch_rows(member, part) for member, part in members), strict=True))
    # Indexing an array returns a scalar: convert it back to an array.
    return actions if space.shape or isinstance(space, Discrete) else [np.asarray(x) for x in actions]


def _action_box(space: Any) -> tuple[Space, Callable[[Any], Any]]:
    dtype = np.dtype(JAX_DTYPES.get(space.dtype.name, space.dtype))
    if dtype == space.dtype:
        return Box(space.low, space.high, space.shape, dtype), functools.partial(np.asarray, dtype=dtype)
    if np.issubdtype(dtype, np.floating):
        with np.errstate(over="ignore"):
            low, high = space.low.astype(dtype), space.high.astype(dtype)
        inner_low = np.where(low < space.low, np.nextafter(low, np.inf, dtype=dtype), low)
        inner_high = np.where(high > space.high, np.nextafter(high, -np.inf, dtype=dtype), high)
        # Bounds beyond the range of the dtype are converted by Box.
        inner_low, low = (np.where(np.isinf(low), space.low, x) for x in (inner_low, low))
        inner_high, high = (np.where(np.isinf(high), space.high, x) for x in (inner_high, high))
        has_room = inner_low <= inner_high  # otherwise no float32 is between the bounds
        box = Box(np.where(has_room, inner_low, low), np.where(has_room, inner_high, low), space.shape, dtype)
    else:
        fits = np.all(space.low >= np.iinfo(dtype).min) and np.all(space.high <= np.iinfo(dtype).max)
        # Clipping to 32 bits would lose some numbers: keep 64 bits, which agents reject.
        box = Box(space.low, space.high, space.shape, dtype if fits else space.dtype)
    return box, lambda actions: np.clip(np.asarray(actions, space.dtype), space.low, space.high)
