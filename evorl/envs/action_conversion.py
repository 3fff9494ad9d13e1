"""Converts between the actions of an environment and the actions of agents.

Agents act in two kinds of spaces: ``Discrete(n)``, counted from 0, and one-dimensional float32 Boxes in which each
dimension is [-1, 1] or unbounded. ``ActionConversion`` maps actions between the agent's space and the environment's
space. Training, exported policies and readers of recorded data use the same conversion.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs.box_intervals import BoxIntervals, NoActionConversion, array_namespace
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, Discrete, Space, leaf_spaces, leaf_values
from evorl.types import Action, ByValue

MAX_JOINT_ACTIONS = 2**14  # maximum number of combinations of several discrete choices


class ActionConversion(ByValue):
    """Maps actions of agents to actions of an environment, and back.

    Discrete spaces (Discrete, MultiDiscrete, tuples and dicts of them) become one ``Discrete(n)`` of all n combinations
    of choices, in which the last choice changes fastest. Boxes (of any shape, or tuples and dicts of them) become one
    float32 ``Box`` of shape ``[A]``. A dimension of this Box is

    - [-1, 1] if both bounds are finite; ``to_env`` clips and scales. Each integer has an equal share of the interval;
    - unbounded if one bound is finite; ``to_env`` is ``low + softplus(x)`` or ``high - softplus(-x)``;
    - unbounded if no bound is finite; ``to_env`` is the identity.

    ``to_env`` and ``to_agent`` accept NumPy or JAX arrays with any leading axes. They are pure and can be traced.

    Args:
        env_space: the action space of the environment.

    Attributes:
        env_space: the action space of the environment.
        agent_space: the space in which agents act.

    Raises:
        NoActionConversion: the space is empty; its parts are not all discrete or all Boxes; there are more than
            ``MAX_JOINT_ACTIONS`` combinations of choices; or an integer Box exceeds ``MAX_INTEGERS`` values or 32 bits.
    """

    def __init__(self, env_space: Space) -> None:
        self.env_space = env_space
        leaves = leaf_spaces(env_space)
        self._structure = jax.tree.structure(env_space.spec)
        choices = [space for space in leaves if isinstance(space, Discrete | MultiDiscrete)]
        boxes = [space for space in leaves if isinstance(space, Box)]
        self._intervals: BoxIntervals | None = None
        if choices and len(choices) == len(leaves):
            self.agent_space: Space = Discrete(_num_combinations(env_space, choices))
        elif boxes and len(boxes) == len(leaves):
            self._intervals = BoxIntervals(env_space, boxes)
            self.agent_space = self._intervals.agent_space
        else:
            raise NoActionConversion(
                f"agents support discrete spaces (Discrete, MultiDiscrete, MultiBinary) and Boxes, or a tuple "
                f"or dict of only one kind; the environment's action space is {env_space!r}. Convert it in a wrapper."
            )

    @property
    def is_identity(self) -> bool:
        """True if agents act in the environment's own space, so that actions need no conversion."""
        return self.agent_space == self.env_space

    def to_env(self, action: Action) -> Any:
        """Convert agents' actions ``[..., *agent_space.shape]`` to ``env_space``; unchanged if ``is_identity``."""
        if self.is_identity:
            return action
        arrays = self._choices_of(action) if self._intervals is None else self._intervals.to_env(action)
        return jax.tree.unflatten(self._structure, arrays)

    def to_agent(self, action: Any) -> Action:
        """Convert actions of the environment to actions of an agent: the inverse of ``to_env``.

        An integer of a Box becomes the middle of its share of [-1, 1]; a dimension with equal bounds becomes 0. Values
        beyond the bounds of a bounded dimension are clipped. A value at or beyond a single bound is moved just inside.
        """
        leaves = leaf_values(self.env_space, action)
        if self._intervals is not None:  # also for [-1, 1], which recorded actions may exceed
            return self._intervals.to_agent(leaves)
        return action if self.is_identity else self._number_of(leaves)

    def _choices_of(self, number: Any) -> list[Any]:
        xp, leaves = array_namespace(number), leaf_spaces(self.env_space)
        number, total = xp.asarray(number), math.prod(_sizes(leaves).tolist())
        rest, converted = total, []
        for space in leaves:
            parts = []
            for size in _sizes([space]).tolist():
                before, rest = rest, rest // size
                part = _quotient(xp, number, rest)
                parts.append(part if before == total else part - _quotient(xp, number, before) * size)
            if isinstance(space, Discrete):
                converted.append((parts[0] + space.start).astype(space.dtype))
            else:
                joined = xp.stack(parts, axis=-1).reshape((*number.shape, *space.shape))
                start = space.start.astype(np.int32)
                converted.append((joined + start if start.any() else joined).astype(space.dtype))
        return converted

    def _number_of(self, leaves: Sequence[Any]) -> Any:
        xp, number = array_namespace(*leaves), 0
        for space, leaf in zip(leaf_spaces(self.env_space), leaves, strict=True):
            leaf = xp.asarray(leaf).astype(np.int32) - np.asarray(space.start, np.int32)
            parts = leaf.reshape((*leaf.shape[: leaf.ndim - len(space.shape)], -1))
            for i, size in enumerate(_sizes([space]).tolist()):
                number = number * size + parts[..., i]
        return number

    def _identity(self) -> Any:
        return self.env_space

    def __repr__(self) -> str:
        return f"ActionConversion({self.env_space!r})"


@functools.lru_cache(maxsize=256)
def action_conversion(env_space: Space) -> ActionConversion | None:
    """Return the conversion for an action space; ``None`` if it is the identity, or if agents cannot act there."""
    if isinstance(env_space, Discrete) and env_space == Discrete(env_space.n):
        return None
    conversion = None if refusal_of(env_space) else ActionConversion(env_space)
    return None if conversion is None or conversion.is_identity else conversion


@functools.lru_cache(maxsize=256)
def refusal_of(env_space: Space) -> str:
    """Return a message on why no agent can act in an action space; an empty string if agents can act there."""
    try:
        ActionConversion(env_space)
    except NoActionConversion as error:
        return str(error)
    return ""


def with_agent_actions(env: Any) -> Any:
    """Return ``env`` with the ``action_space`` of agents; its ``step`` still needs actions of the original space."""
    conversion = action_conversion(env.action_space)
    return env if conversion is None else _WithAgentActions(env, conversion.agent_space)


class _WithAgentActions:
    def __init__(self, env: Any, action_space: Space) -> None:
        self._env, self.action_space = env, action_space

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _num_combinations(space: Space, choices: Sequence[Any]) -> int:
    if not _sizes(choices).size:
        raise NoActionConversion(f"an action needs at least one choice, but the action space is {space!r}.")
    count = math.prod(_sizes(choices).tolist())
    if len(choices) == 1 and isinstance(choices[0], Discrete):
        return count
    if count > MAX_JOINT_ACTIONS:
        raise NoActionConversion(
            f"{space!r} has {count:,} combinations, but an agent chooses among at most {MAX_JOINT_ACTIONS:,}: reduce "
            "the number of choices per action."
        )
    return count


def _sizes(choices: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.ravel(space.n if isinstance(space, Discrete) else space.sizes) for space in choices])


def _quotient(xp: Any, number: Any, divisor: int) -> Any:
    """Return ``number // divisor`` for non-negative numbers."""
    if divisor == 1:
        return number
    return jax.lax.div(number, jnp.full_like(number, divisor)) if xp is jnp else number // divisor
