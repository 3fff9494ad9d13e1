"""The base of everything that changes one environment."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from evorl.envs.env import Env, EnvState
from evorl.envs.space import Space
from evorl.types import Action, Key


class Wrapper(Env):
    """An environment around another one; on its own it changes nothing.

    A wrapper keeps its parameters as hashable attributes: two wrappers are equal when type, parameters and inner
    environments are. What it must remember between steps it puts into ``_internal`` under names of its own.

    Raises:
        TypeError: ``env`` is no ``Env``, is already a vector env, or is a wrapper that must be outermost.
    """

    is_outermost: ClassVar[bool] = False

    def __init__(self, env: Env) -> None:
        if not isinstance(env, Env):
            raise TypeError(
                f"{type(self).__name__} wraps an evorl Env, got {type(env).__name__}: put it into an adapter such as "
                "evorl.envs.brax.BraxAdapter first."
            )
        if hasattr(env, "num_envs"):
            raise TypeError(
                f"{type(self).__name__} wraps a single environment, got the vector env {type(env).__name__}: apply it "
                "before the vmap wrapper."
            )
        if getattr(env, "is_outermost", False):
            raise TypeError(f"{type(env).__name__} is the outermost wrapper: put {type(self).__name__} inside it.")
        self.env = env

    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        return self.env.reset(key)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        return self.env.step(env_state, action)

    @property
    def obs_space(self) -> Space:
        """See ``Env.obs_space``."""
        return self.env.obs_space

    @property
    def action_space(self) -> Space:
        """See ``Env.action_space``."""
        return self.env.action_space

    @property
    def max_episode_steps(self) -> int | None:
        """See ``Env.max_episode_steps``."""
        return self.env.max_episode_steps

    @property
    def unwrapped(self) -> Env:
        """The innermost environment."""
        return self.env.unwrapped

    def _identity(self) -> Any:
        return tuple(sorted(vars(self).items()))


def has_layer(env: Env, layer: type) -> bool:
    """Whether ``env`` or an environment inside it is a ``layer``."""
    while True:
        if isinstance(env, layer):
            return True
        if not isinstance(env, Wrapper):
            return False
        env = env.env


def positive_int(value: Any, name: str) -> int:
    """``value`` as an int of at least 1. Raises ``ValueError`` in words otherwise."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return int(value)
