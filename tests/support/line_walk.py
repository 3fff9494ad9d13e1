"""A walk on a line whose best return is known for every place it can end at."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.envs import Box, Env, EnvState, Space
from evorl.types import PyTreeDict

NUM_STEPS = 4


class LineWalk(Env):
    """Observation ``[place, time]``; the action, in [-1, 1], is added to the place and costs its square.

    A walk that ends at x returns at most ``-x^2 / NUM_STEPS``, by equal steps.
    """

    @property
    def obs_space(self) -> Space:
        return Box(-float(NUM_STEPS), float(NUM_STEPS), (2,))

    @property
    def action_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    @property
    def max_episode_steps(self) -> int:
        return NUM_STEPS

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.zeros(()))

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        place, time = env_state.env_state
        return self._state(place + action[0], time + 1, -jnp.square(action[0]))

    def _state(self, place: jax.Array, time: jax.Array, reward: jax.Array) -> EnvState:
        ended = time >= NUM_STEPS
        return EnvState(
            env_state=(place, time),
            obs=jnp.stack([place, time.astype(jnp.float32)]) / NUM_STEPS,
            reward=reward,
            done=ended,
            info=PyTreeDict(termination=ended, truncation=jnp.zeros_like(ended), metrics=PyTreeDict(place=place)),
        )

    def _identity(self) -> str:
        return "line_walk"
