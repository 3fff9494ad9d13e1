"""Gymnasium's spaces as ours. Gymnasium itself is imported when it is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace

MOST_JOINT_ACTIONS = 4096


def space_of(space: Any) -> Space:
    """Convert Gymnasium's space of observations to one of ours; float64 becomes float32, booleans and integers stay.

    Elements keep their numbers: a choice that starts at 3 stays one of 3, 4 ... Networks read it one-hot encoded, see
    ``evorl.envs.wrappers.encoding``.

    Raises:
        ValueError: observations are neither arrays nor dicts and tuples of arrays.
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
    raise ValueError(f"observations must be arrays, or dicts and tuples of arrays; this environment's are {space}.")


def action_space_of(space: Any) -> tuple[Space, Callable[[Any], Any]]:
    """Gymnasium's space of actions as one of ours, and the function from a batch of ours to a batch of its own.

    Several choices at once (MultiDiscrete, MultiBinary) are one choice among all their combinations.

    Raises:
        ValueError: another kind, or too many combinations.
    """
    import gymnasium.spaces as spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), lambda actions: np.asarray(actions, space.dtype) + space.start
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
        count = math.prod(int(size) for size in sizes.ravel())
        if count > MOST_JOINT_ACTIONS:
            raise ValueError(
                f"{space} has {count:,} combinations, more than {MOST_JOINT_ACTIONS:,} that agents can have."
            )

        def combination(actions: Any) -> np.ndarray:
            choices = np.stack(np.unravel_index(np.asarray(actions), sizes.ravel()), axis=-1)
            return (choices.reshape(-1, *sizes.shape) + start).astype(space.dtype)

        return Discrete(count), combination
    if isinstance(space, spaces.Box):
        dtype = np.float32 if space.dtype == np.float64 else space.dtype
        return Box(space.low, space.high, space.shape, dtype), lambda actions: np.asarray(actions, space.dtype)
    raise ValueError(
        f"agents act in Discrete, MultiDiscrete, MultiBinary and Box; this environment's space is {space}."
    )
