"""Two agents in one copy of an environment, without a library."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.envs import Box, Discrete, Env, EnvState
from evorl.ops.collectives import agent_number, of_all_agents
from evorl.types import Action, Key, Observation, PyTreeDict

NUM_AGENTS = 2


class TugOfWar(Env):
    """Each pulls a rope or lets go; it also drifts by chance. It is over where the rope is 2 or more from the middle.

    An agent sees where the rope is on its side, and is paid for what it pulls against the other: +1, 0 or -1.
    """

    obs_space = Box(-10.0, 10.0, (2,))
    action_space = Discrete(2)
    num_agents = NUM_AGENTS  # pyright: ignore[reportAssignmentType]

    def reset(self, key: Key) -> EnvState:
        """From within 1 of the middle, drawn from the key of the first agent."""
        start_key, steps_key = jax.random.split(of_all_agents(key, NUM_AGENTS)[0])
        rope = jax.random.uniform(start_key, minval=-1.0, maxval=1.0)
        return self._state(rope, steps_key, jnp.zeros(NUM_AGENTS, jnp.int32), jnp.zeros((), bool))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Both pull."""
        rope, key = (of_all_agents(x, NUM_AGENTS)[0] for x in (env_state.env_state.rope, env_state.env_state.key))
        pulls = of_all_agents(action, NUM_AGENTS)
        key, drift_key = jax.random.split(key)
        rope = rope + pulls[0] - pulls[1] + 0.1 * jax.random.uniform(drift_key)
        return self._state(rope, key, pulls, jnp.abs(rope) >= 2.0)

    def _state(self, rope: jax.Array, key: Key, pulls: jax.Array, over: jax.Array) -> EnvState:
        me = agent_number()
        obs: Observation = jnp.stack([jnp.where(me == 0, rope, -rope), jnp.asarray(me, jnp.float32)])
        reward = (pulls[me] - pulls[1 - me]).astype(jnp.float32)
        info = PyTreeDict(termination=over, truncation=jnp.zeros_like(over), metrics=PyTreeDict())
        return EnvState(PyTreeDict(rope=rope, key=key), obs, reward, over, info)

    def _identity(self) -> tuple:
        return ()
