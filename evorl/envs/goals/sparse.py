"""Sparse rewards of evorl's goal environments: 0 at the goal, -1 elsewhere."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from evorl.envs.env import EnvState
from evorl.envs.goals.task import SuccessFn
from evorl.types import Action, Observation, PyTreeDict


@dataclasses.dataclass(frozen=True)
class Within:
    """Success function: returns true if ``achieved`` and ``desired`` are at most ``distance`` (Euclidean) apart."""

    distance: float

    def __call__(self, achieved: jax.Array, desired: jax.Array) -> jax.Array:
        return jnp.linalg.norm(achieved - desired) <= self.distance


@dataclasses.dataclass(frozen=True)
class MinusOneUntil:
    """Reward function: returns 0 for a step that reaches the goal according to ``success_fn``, otherwise -1."""

    success_fn: SuccessFn

    def __call__(self, achieved: jax.Array, desired: jax.Array, action: Action, observation: Observation) -> jax.Array:
        return self.success_fn(achieved, desired) - 1.0


def observed(obs: jax.Array) -> EnvState:
    """Return an ``EnvState`` with ``obs`` as state and observation; the reward is 0, and the episode continues."""
    never = jnp.zeros((), jnp.bool_)
    info = PyTreeDict(termination=never, truncation=never, metrics=PyTreeDict())
    return EnvState(env_state=obs, obs=obs, reward=jnp.zeros(()), done=never, info=info)


def full_obs(env_state: EnvState) -> jax.Array:
    """Return the whole observation as the achieved goal; for ``achieved_goal_fn`` of a ``GoalWrapper``."""
    return env_state.obs
