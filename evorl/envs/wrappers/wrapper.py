"""Base class of the wrappers of a single environment."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from evorl.envs.env import Env, EnvState, EnvWrapper
from evorl.types import Action, Key, Observation


class Wrapper(EnvWrapper):
    """A wrapper of a single environment; the base class changes nothing.

    A wrapper stores its parameters as hashable attributes: two wrappers are equal if their types, parameters
    and environments are equal. It stores values for later steps in ``EnvState._internal``, under unique names.

    Raises:
        TypeError: ``env`` is not an ``Env``, is a vector environment, or is a wrapper that must be outermost.
    """

    is_outermost: ClassVar[bool] = False

    def __init__(self, env: Env) -> None:
        if not isinstance(env, Env):
            raise TypeError(
                f"{type(self).__name__} wraps an evorl Env, got {type(env).__name__}: convert it with an adapter such "
                "as evorl.envs.brax.BraxAdapter first."
            )
        if hasattr(env, "num_envs"):
            raise TypeError(
                f"{type(self).__name__} wraps a single environment, got the vector environment {type(env).__name__}: "
                f"apply {type(self).__name__} before the vmap wrapper."
            )
        if getattr(env, "is_outermost", False):
            raise TypeError(f"{type(env).__name__} must be the outermost wrapper: apply {type(self).__name__} first.")
        self.env = env

    def reset(self, key: Key) -> EnvState:
        return self.env.reset(key)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self.env.step(env_state, action)

    def _identity(self) -> Any:
        return tuple(sorted((name, value) for name, value in vars(self).items() if name != "_hash"))


class ChangesObservations(abc.ABC):
    """Mixin, to inherit before ``Wrapper``, for wrappers that map each observation to another one."""

    env: Env

    @abc.abstractmethod
    def observation(self, obs: Observation) -> Observation:
        """Map an observation of ``env`` to the agent's observation."""

    def reset(self, key: Key) -> EnvState:
        """Return the first state of an episode, with the mapped observation."""
        state = self.env.reset(key)
        return state.replace(obs=self.observation(state.obs))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Return the state after one step, with the mapped observation."""
        state = self.env.step(env_state, action)
        return state.replace(obs=self.observation(state.obs))


def has_layer(env: Env, layer: type) -> bool:
    """Return True if ``env``, or an environment wrapped by ``env`` at any depth, is an instance of ``layer``."""
    while True:
        if isinstance(env, layer):
            return True
        if not isinstance(env, Wrapper):
            return False
        env = env.env
