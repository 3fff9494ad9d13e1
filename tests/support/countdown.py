"""An environment whose episodes are known from their first observation: it counts down from a random number."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.envs import Box, Env, EnvState, Space
from evorl.types import PyTreeDict

LONGEST = 6


class Countdown(Env):
    """Observation ``[left]``; a step pays ``left`` plus the action and takes one off; 0 is the end."""

    @property
    def obs_space(self) -> Space:
        return Box(0.0, float(LONGEST), (1,))

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jax.random.randint(key, (), 1, LONGEST + 1), jnp.zeros(()))

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        left = env_state.env_state
        return self._state(left - 1, left + action[0])

    def _state(self, left: jax.Array, reward: jax.Array) -> EnvState:
        ended = left <= 0
        return EnvState(
            env_state=left,
            obs=left[None].astype(jnp.float32),
            reward=reward.astype(jnp.float32),
            done=ended,
            info=PyTreeDict(termination=ended, truncation=jnp.zeros_like(ended), metrics=PyTreeDict()),
        )

    def _identity(self) -> str:
        return "countdown"
