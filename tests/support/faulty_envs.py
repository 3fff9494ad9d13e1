"""A walk that keeps the contract of environments, and variants that each break it in one way."""

from __future__ import annotations

# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false, reportIncompatibleVariableOverride=false
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs import Box, DictSpace, Discrete, Env, EnvState
from evorl.types import PyTreeDict
from tests.support.toy_envs import toy_state


class Walk(Env):
    """Moves by 0.1 on a line until its ends."""

    obs_space = Box(-jnp.ones(1), jnp.ones(1))
    action_space = Discrete(2)

    def reset(self, key: Any) -> EnvState:
        return walked(jax.random.uniform(key, (), minval=-0.5, maxval=0.5))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(jnp.clip(env_state.env_state + jnp.where(action == 1, 0.1, -0.1), -1, 1), reward=-0.01)


def walked(position: Any, reward: Any = 0.0) -> EnvState:
    return toy_state(position, position[None], reward, jnp.abs(position) > 0.99)


class OtherShape(Walk):
    obs_space = Box(-1.0, 1.0, (3,))


class OtherDtype(Walk):
    obs_space = Box(0, 255, (1,), np.uint8)


class OtherStructure(Walk):
    def reset(self, key: Any) -> EnvState:
        state = super().reset(key)
        return state.replace(obs=PyTreeDict(position=state.obs))


class PlainDict(Walk):
    obs_space: Any = DictSpace({"position": Box(-1.0, 1.0, (1,))})

    def reset(self, key: Any) -> EnvState:
        state = super().reset(key)
        return state.replace(obs={"position": state.obs})

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(obs={"position": state.obs})


class NoEntries(Walk):
    obs_space: Any = DictSpace({})

    def reset(self, key: Any) -> EnvState:
        return super().reset(key).replace(obs=PyTreeDict())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return super().step(env_state, action).replace(obs=PyTreeDict())


class NoNumbers(Walk):
    obs_space = Box(-1.0, 1.0, (0,))

    def reset(self, key: Any) -> EnvState:
        return super().reset(key).replace(obs=jnp.zeros(0))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return super().step(env_state, action).replace(obs=jnp.zeros(0))


class DictInfo(Walk):
    def reset(self, key: Any) -> EnvState:
        state = super().reset(key)
        return state.replace(info=dict(state.info))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(info=dict(state.info))


class StartsDone(Walk):
    def reset(self, key: Any) -> EnvState:
        state = super().reset(key)
        ended = jnp.ones((), bool)
        return state.replace(done=ended, info=state.info | {"termination": ended})


class FiveValues(Walk):
    def step(self, env_state: EnvState, action: Any) -> Any:
        return env_state.obs, 0.0, False, False, {}


class TwoValues(Walk):
    def reset(self, key: Any) -> Any:
        return jnp.zeros(1), {}


class NothingReturned(Walk):
    def step(self, env_state: EnvState, action: Any) -> Any:
        walked(env_state.env_state)


class Growing(Walk):
    def reset(self, key: Any) -> EnvState:
        return super().reset(key).replace(env_state=0)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state + jnp.float32(0.1))


class Remembering(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(info=state.info | {"last": state.obs})


class RewardVector(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return super().step(env_state, action).replace(reward=jnp.zeros(1))


class RewardNumber(Walk):
    def reset(self, key: Any) -> EnvState:
        return super().reset(key).replace(reward=0)


class DoneFloat(Walk):
    def reset(self, key: Any) -> EnvState:
        return super().reset(key).replace(done=jnp.float32(0))


class NoFlags(Walk):
    def reset(self, key: Any) -> EnvState:
        return super().reset(key).replace(info=PyTreeDict(metrics=PyTreeDict()))


class GymnasiumSpace(Walk):
    action_space: Any = gymnasium.spaces.Discrete(2)


class SpaceMethod(Walk):
    def obs_space(self) -> Any:
        return Box(-1.0, 1.0, (1,))


class NoKey(Walk):
    def reset(self) -> EnvState:
        return walked(jnp.zeros(()))


class NumpyInside(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(jnp.asarray(np.sin(env_state.env_state)))


class FloatInside(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(jnp.float32(float(env_state.env_state)))


class IfInside(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state + (0.1 if action == 1 else -0.1))


class SizeInside(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state + jnp.zeros(action).sum())


class ShapesApart(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state + jnp.zeros(3) @ jnp.zeros(2))


class TextInside(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        state = super().step(env_state, action)
        return state.replace(info=state.info | {"title": "walk"})


class NoActions(Env):
    obs_space = Box(-1.0, 1.0, (1,))

    def reset(self, key: Any) -> EnvState:
        return walked(jnp.zeros(()))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return env_state


class RewardNan(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(jnp.minimum(env_state.env_state + 0.2, 1.0), reward=jnp.log(0.3 - env_state.env_state))


class Outside(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state + 0.7)


class RandomOfNumpy(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state * np.random.default_rng().random(dtype=np.float32))


class ReadsInfo(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state * jnp.where(env_state.info.truncation, 0.5, 0.9))


class ReadsObs(Walk):
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(0.9 * env_state.obs[0])


class ObservesObs(Walk):
    """Its next observation, but not its state, depends on the observation."""

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state * 0.9).replace(obs=0.5 * env_state.obs)


class Still(Walk):
    def reset(self, key: Any) -> EnvState:
        return walked(jnp.float32(0.9))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return walked(env_state.env_state + 0.1)
