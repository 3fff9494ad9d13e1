"""An environment with any action space, whose state is the action that reached it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs import Box, Env, EnvState, Space
from evorl.types import PyTreeDict


class ActionEnv(Env):
    """Observes a constant 0 and pays nothing; ``env_state`` is the last action, as the environment received it."""

    obs_space = Box(-1.0, 1.0, (1,))

    def __init__(self, space: Space) -> None:
        self._space = space

    @property
    def action_space(self) -> Space:
        """As given."""
        return self._space

    @property
    def max_episode_steps(self) -> int:
        """Five."""
        return 5

    def reset(self, key: jax.Array) -> EnvState:
        """An action of zeros, which the environment never received; of 32 bits, as JAX's arrays."""
        dtype_of = jax.dtypes.canonicalize_dtype
        return self._state(jax.tree.map(lambda x: jnp.zeros(x.shape, dtype_of(x.dtype)), self._space.spec))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """Keep the action."""
        return self._state(action)

    def _state(self, action: Any) -> EnvState:
        no = jnp.zeros((), jnp.bool_)
        info = PyTreeDict(termination=no, truncation=no, metrics=PyTreeDict())
        return EnvState(env_state=action, obs=jnp.zeros(1), reward=jnp.zeros(()), done=no, info=info)

    def _identity(self) -> Any:
        return self._space
