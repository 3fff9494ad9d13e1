"""An environment of which some actions are forbidden, others in every state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs import Box, DictSpace, Discrete, Env, EnvState
from evorl.types import PyTreeDict

NUM_ACTIONS = 6
MADE_BY = "tests.support.masked_env:MaskedEnv"


class MaskedEnv(Env):
    """Pays 1 for an allowed action and -100 for a forbidden one; an episode ends by chance, with nothing allowed."""

    action_space = Discrete(NUM_ACTIONS)
    obs_space = DictSpace(
        {
            "observation": Box(-jnp.inf, jnp.inf, (3,)),
            "action_mask": Box(False, True, (NUM_ACTIONS,), jnp.bool_),
        }
    )

    def reset(self, key: jax.Array) -> EnvState:
        """See ``Env.reset``."""
        return self._state(key, jnp.zeros((), jnp.int32), jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``."""
        reward = jnp.where(env_state.obs.action_mask[action], 1.0, -100.0)
        return self._state(env_state.env_state.key, env_state.env_state.t + 1, reward)

    def _state(self, key: jax.Array, t: jax.Array, reward: jax.Array) -> EnvState:
        obs_key, mask_key, one_key, end_key = jax.random.split(jax.random.fold_in(key, t), 4)
        ends = (t > 0) & jax.random.bernoulli(end_key, 0.2)
        mask = jax.random.bernoulli(mask_key, 0.4, (NUM_ACTIONS,))
        mask = (mask | (jnp.arange(NUM_ACTIONS) == jax.random.randint(one_key, (), 0, NUM_ACTIONS))) & ~ends
        obs = PyTreeDict(observation=jax.random.normal(obs_key, (3,)), action_mask=mask)
        info = PyTreeDict(termination=ends, truncation=jnp.zeros_like(ends), metrics=PyTreeDict())
        return EnvState(PyTreeDict(key=key, t=t), obs, reward, ends, info)

    def _identity(self) -> Any:
        return ()
