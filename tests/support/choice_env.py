"""An environment that shows choices, which start at other numbers than 0, beside pixels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs import Box, DictSpace, Discrete, Env, EnvState, MultiDiscrete
from evorl.types import PyTreeDict

MADE_BY = "tests.support.choice_env:ChoiceEnv"


class ChoiceEnv(Env):
    """Shows an element of its space, and pays 1 for the action that is one less than ``kind``."""

    action_space = Discrete(3)
    obs_space = DictSpace(
        {
            "kind": Discrete(3, start=1),
            "grid": MultiDiscrete([[2, 5], [3, 2]], start=[[0, -2], [4, 0]]),
            "eye": Box(0, 255, (2, 2), np.uint8),
        }
    )

    def reset(self, key: jax.Array) -> EnvState:
        """See ``Env.reset``."""
        return self._state(key, jnp.zeros((), jnp.int32), jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``."""
        key, t, kind = (env_state.env_state[name] for name in ("key", "t", "kind"))
        return self._state(key, t + 1, (action == kind - 1).astype(jnp.float32))

    def _state(self, key: jax.Array, t: jax.Array, reward: jax.Array) -> EnvState:
        obs = self.obs_space.sample(jax.random.fold_in(key, t))
        never = jnp.zeros((), bool)
        info = PyTreeDict(termination=never, truncation=never, metrics=PyTreeDict())
        return EnvState(PyTreeDict(key=key, t=t, kind=obs.kind), obs, reward, never, info)

    def _identity(self) -> Any:
        return ()
