"""Small environments whose outcomes tests can compute, and shared helpers."""

from __future__ import annotations

# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false, reportIncompatibleVariableOverride=false
import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs import Box, DictSpace, Discrete, Env, EnvState, MultiDiscrete, Space
from evorl.envs.starts import StartPolicy
from evorl.ops.collectives import agent_number, of_all_agents
from evorl.types import PyTreeDict

LONGEST = 6  # maximum steps of a countdown
NUM_STEPS = 4  # of a walk on a line
NUM_ACTIONS = 6  # of the masked environment
MASKED, CHOICES = (f"{__name__}:{name}" for name in ("MaskedEnv", "ChoiceEnv"))


def toy_state(env_state: Any, obs: Any, reward: Any = 0.0, ended: Any = False, **metrics: Any) -> EnvState:
    """Return a state whose episode terminates where ``ended`` is true, and is never truncated."""
    ended = jnp.asarray(ended, bool)
    info = PyTreeDict(termination=ended, truncation=jnp.zeros_like(ended), metrics=PyTreeDict(metrics))
    return EnvState(env_state, obs, jnp.asarray(reward, jnp.float32), ended, info)


class ToyEnv(Env):
    """Base of environments whose spaces are attributes of the class or the instance; equal if these are.

    Args:
        action_space: replaces that of the class.
        obs_space: replaces that of the class.
    """

    obs_space: Space = Box(-1.0, 1.0, (1,))
    action_space: Space = Box(-1.0, 1.0, (1,))

    def __init__(self, action_space: Space | None = None, obs_space: Space | None = None) -> None:
        self.action_space, self.obs_space = action_space or self.action_space, obs_space or self.obs_space

    def reset(self, key: jax.Array) -> EnvState:
        raise NotImplementedError

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        raise NotImplementedError

    def _identity(self) -> Any:
        return self.obs_space, self.action_space


class Countdown(ToyEnv):
    """Counts down from a random number, ``[left]``; a step pays ``left`` plus the action; the episode ends at 0."""

    obs_space = Box(0.0, float(LONGEST), (1,))

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jax.random.randint(key, (), 1, LONGEST + 1), 0.0)

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        return self._state(env_state.env_state - 1, env_state.env_state + action[0])

    def _state(self, left: jax.Array, reward: Any) -> EnvState:
        return toy_state(left, left[None].astype(jnp.float32), reward, left <= 0)


class LineWalk(ToyEnv):
    """Observation ``[position, time]``; the action, in [-1, 1], is added to the position and costs its square.

    A walk that ends at x returns at most ``-x^2 / NUM_STEPS``, with equal steps.
    """

    obs_space = Box(-float(NUM_STEPS), float(NUM_STEPS), (2,))
    max_episode_steps = NUM_STEPS

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jnp.zeros(()), jnp.zeros((), jnp.int32), 0.0)

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        place, time = env_state.env_state
        return self._state(place + action[0], time + 1, -jnp.square(action[0]))

    def _state(self, place: jax.Array, time: jax.Array, reward: Any) -> EnvState:
        obs = jnp.stack([place, time.astype(jnp.float32)]) / NUM_STEPS
        return toy_state((place, time), obs, reward, time >= NUM_STEPS, place=place)


class ActionEnv(ToyEnv):
    """Supports any action space; ``env_state`` is the last received action, initially zeros."""

    max_episode_steps = 5

    def reset(self, key: jax.Array) -> EnvState:
        """Start with zeros of 32 bits, as JAX's arrays."""
        dtype_of = jax.dtypes.canonicalize_dtype
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype_of(x.dtype)), self.action_space.spec)
        return toy_state(zeros, jnp.zeros(1))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return toy_state(action, jnp.zeros(1))


class ChoiceEnv(ToyEnv):
    """Observes an element of its space, choices and pixels; pays 1 for the action ``kind - 1``."""

    action_space = Discrete(3)
    obs_space = DictSpace(
        {
            "kind": Discrete(3, start=1),
            "grid": MultiDiscrete([[2, 5], [3, 2]], start=[[0, -2], [4, 0]]),
            "eye": Box(0, 255, (2, 2), np.uint8),
        }
    )

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(key, jnp.zeros((), jnp.int32), 0.0)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        key, t, kind = (env_state.env_state[name] for name in ("key", "t", "kind"))
        return self._state(key, t + 1, action == kind - 1)

    def _state(self, key: jax.Array, t: jax.Array, reward: Any) -> EnvState:
        obs = self.obs_space.sample(jax.random.fold_in(key, t))
        return toy_state(PyTreeDict(key=key, t=t, kind=obs.kind), obs, reward)


class MaskedEnv(ToyEnv):
    """Pays 1 for an allowed action and -100 for a masked one; episodes end at random, with all actions masked."""

    action_space = Discrete(NUM_ACTIONS)
    obs_space = DictSpace(
        {
            "observation": Box(-jnp.inf, jnp.inf, (3,)),
            "action_mask": Box(False, True, (NUM_ACTIONS,), jnp.bool_),
        }
    )

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(key, jnp.zeros((), jnp.int32), 0.0)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        reward = jnp.where(env_state.obs.action_mask[action], 1.0, -100.0)
        return self._state(env_state.env_state.key, env_state.env_state.t + 1, reward)

    def _state(self, key: jax.Array, t: jax.Array, reward: Any) -> EnvState:
        obs_key, mask_key, one_key, end_key = jax.random.split(jax.random.fold_in(key, t), 4)
        ends = (t > 0) & jax.random.bernoulli(end_key, 0.2)
        mask = jax.random.bernoulli(mask_key, 0.4, (NUM_ACTIONS,))
        mask = (mask | (jnp.arange(NUM_ACTIONS) == jax.random.randint(one_key, (), 0, NUM_ACTIONS))) & ~ends
        obs = PyTreeDict(observation=jax.random.normal(obs_key, (3,)), action_mask=mask)
        return toy_state(PyTreeDict(key=key, t=t), obs, reward, ends)


class TwoCountdowns(Countdown):
    """Two agents, each with a countdown."""

    num_agents = 2


class TugOfWar(ToyEnv):
    """Two agents pull a rope, or let go; it also drifts at random. An episode ends 2 or more from the middle.

    An agent observes the rope from its side, and is paid for pulling more than the other: +1, 0 or -1.
    """

    obs_space = Box(-10.0, 10.0, (2,))
    action_space = Discrete(2)
    num_agents = 2

    def reset(self, key: jax.Array) -> EnvState:
        """Start within 1 of the middle, using the key of the first agent."""
        start_key, steps_key = jax.random.split(of_all_agents(key, 2)[0])
        rope = jax.random.uniform(start_key, minval=-1.0, maxval=1.0)
        return self._state(rope, steps_key, jnp.zeros(2, jnp.int32), False)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        rope, key = (of_all_agents(x, 2)[0] for x in (env_state.env_state.rope, env_state.env_state.key))
        pulls = of_all_agents(action, 2)
        key, drift_key = jax.random.split(key)
        rope = rope + pulls[0] - pulls[1] + 0.1 * jax.random.uniform(drift_key)
        return self._state(rope, key, pulls, jnp.abs(rope) >= 2.0)

    def _state(self, rope: jax.Array, key: jax.Array, pulls: jax.Array, over: Any) -> EnvState:
        me = agent_number()
        obs = jnp.stack([jnp.where(me == 0, rope, -rope), jnp.asarray(me, jnp.float32)])
        return toy_state(PyTreeDict(rope=rope, key=key), obs, pulls[me] - pulls[1 - me], over)


def with_starts(env: Any, policy: StartPolicy) -> Any:
    """Return the same environments with this policy for computing starts; results do not depend on the policy."""
    env = copy.copy(env)
    vars(env).pop("_hash", None)
    env.starts = policy
    return env
