"""Wrappers that change the reward. Put outside an ``EpisodeWrapper``, which then reports unchanged returns."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from evorl.config.values import positive
from evorl.envs.env import Env, EnvState
from evorl.envs.wrappers.wrapper import Wrapper
from evorl.types import Action, Key


class RewardScaleWrapper(Wrapper):
    """The reward times ``scale``.

    Raises:
        ValueError: ``scale`` is no finite number.
    """

    def __init__(self, env: Env, scale: float) -> None:
        super().__init__(env)
        if isinstance(scale, bool | str) or not math.isfinite(scale):
            raise ValueError(f"reward_scale must be a number, got {scale!r}.")
        self.scale = float(scale)

    @property
    def goal_task(self) -> Any:
        """See ``Env.goal_task``: with rewards times ``scale``."""
        task = self.env.goal_task
        return task and task.with_reward(lambda *step: self.scale * task.reward_fn(*step))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        state = self.env.step(env_state, action)
        return state.replace(reward=state.reward * self.scale)


class RewardClipWrapper(Wrapper):
    """The reward, but at most ``limit`` and at least ``-limit``.

    Raises:
        ValueError: ``limit`` is no positive finite number.
    """

    def __init__(self, env: Env, limit: float) -> None:
        super().__init__(env)
        if isinstance(limit, bool | str) or not (math.isfinite(limit) and limit > 0):
            raise ValueError(f"reward_clip must be a positive number, got {limit!r}.")
        self.limit = float(limit)

    @property
    def goal_task(self) -> Any:
        """See ``Env.goal_task``: with clipped rewards."""
        task = self.env.goal_task
        return task and task.with_reward(lambda *step: jnp.clip(task.reward_fn(*step), -self.limit, self.limit))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        state = self.env.step(env_state, action)
        return state.replace(reward=jnp.clip(state.reward, -self.limit, self.limit))


class SparseRewardWrapper(Wrapper):
    """The reward is saved up and paid every ``interval`` steps and at the end of the episode, 0 in between."""

    hides_goals = "env.sparse_reward_interval pays for several steps at once"

    def __init__(self, env: Env, interval: int) -> None:
        super().__init__(env)
        self.interval = positive(interval, "interval")

    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        state = self.env.reset(key)
        unpaid = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return state.replace(_internal=state._internal | {"unpaid_reward": unpaid[0], "unpaid_steps": unpaid[1]})

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        state = self.env.step(env_state, action)
        saved = env_state._internal.unpaid_reward + state.reward
        steps = env_state._internal.unpaid_steps + 1
        pays = (steps == self.interval) | state.done
        internal = state._internal | {
            "unpaid_reward": jnp.where(pays, 0.0, saved),
            "unpaid_steps": jnp.where(pays, 0, steps),
        }
        return state.replace(reward=jnp.where(pays, saved, 0.0), _internal=internal)
