"""Wrappers that change the reward. Applied outside of an ``EpisodeWrapper``, they do not affect reported returns."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.names import no_such
from evorl.config.values import positive
from evorl.envs.env import Env, EnvState
from evorl.envs.wrappers.wrapper import Wrapper
from evorl.types import Action, Key

# Elementwise functions for ``reward_transform``; all of them keep the sign.
TRANSFORMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "arctan": jnp.arctan,
    "sign": jnp.sign,
    "sqrt": lambda reward: jnp.sign(reward) * jnp.sqrt(jnp.abs(reward)),
    "log": lambda reward: jnp.sign(reward) * jnp.log1p(jnp.abs(reward)),
}


class ChangesRewards(abc.ABC):
    """Mixin, to inherit before ``Wrapper``, for wrappers that transform each reward independently."""

    env: Env

    @property
    def goal_task(self) -> Any:
        """The goal task with transformed rewards; ``None`` without goals."""
        task = self.env.goal_task
        return task and task.with_reward(lambda *step: self.transformed(task.reward_fn(*step)))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Return the state after one step, with the transformed reward."""
        state = self.env.step(env_state, action)
        return state.replace(reward=self.transformed(state.reward))

    @abc.abstractmethod
    def transformed(self, reward: jax.Array) -> jax.Array:
        """Return the transformed reward, a scalar, or rewards of any shape."""


class RewardScaleWrapper(ChangesRewards, Wrapper):
    """Multiplies the reward by ``scale``; raises ``ValueError`` unless it is a finite number."""

    def __init__(self, env: Env, scale: float) -> None:
        super().__init__(env)
        if isinstance(scale, bool | str) or not math.isfinite(scale):
            raise ValueError(f"env.reward_scale must be a finite number, got {scale!r}.")
        self.scale = float(scale)

    def transformed(self, reward: jax.Array) -> jax.Array:
        return reward * self.scale


class RewardClipWrapper(ChangesRewards, Wrapper):
    """Clips the reward to ``[-limit, limit]``; raises ``ValueError`` unless the limit is a positive finite number."""

    def __init__(self, env: Env, limit: float) -> None:
        super().__init__(env)
        if isinstance(limit, bool | str) or not (math.isfinite(limit) and limit > 0):
            raise ValueError(f"env.reward_clip must be a positive, finite number, got {limit!r}.")
        self.limit = float(limit)

    def transformed(self, reward: jax.Array) -> jax.Array:
        return jnp.clip(reward, -self.limit, self.limit)


class RewardTransformWrapper(ChangesRewards, Wrapper):
    """Applies a function to the reward; the function reduces large absolute values and keeps the sign.

    ``name`` is ``tanh``, ``arctan``, ``sign``, ``sqrt`` (``sign(r) sqrt(|r|)``) or ``log`` (``sign(r) log(1 + |r|)``).

    Raises:
        ValueError: the function is unknown.
    """

    def __init__(self, env: Env, name: str) -> None:
        super().__init__(env)
        if name not in TRANSFORMS:
            raise ValueError(no_such("value of env.reward_transform", name, TRANSFORMS))
        self.name = name

    def transformed(self, reward: jax.Array) -> jax.Array:
        return TRANSFORMS[self.name](reward)


class SparseRewardWrapper(Wrapper):
    """Returns the sum of the rewards every ``interval`` steps and at the end of an episode; other rewards are 0."""

    hides_goals = "env.sparse_reward_interval accumulates the rewards of several steps"

    def __init__(self, env: Env, interval: int) -> None:
        super().__init__(env)
        self.interval = positive(interval, "interval")

    def reset(self, key: Key) -> EnvState:
        state = self.env.reset(key)
        unpaid = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return state.replace(_internal=state._internal | {"unpaid_reward": unpaid[0], "unpaid_steps": unpaid[1]})

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        state = self.env.step(env_state, action)
        accumulated = env_state._internal.unpaid_reward + state.reward
        steps = env_state._internal.unpaid_steps + 1
        pays = (steps == self.interval) | state.done
        internal = state._internal | {
            "unpaid_reward": jnp.where(pays, 0.0, accumulated),
            "unpaid_steps": jnp.where(pays, 0, steps),
        }
        return state.replace(reward=jnp.where(pays, accumulated, 0.0), _internal=internal)
