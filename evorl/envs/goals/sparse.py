"""What our goal environments have in common: nothing is paid but for the goal, and that is 0 instead of -1."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from evorl.envs.env import EnvState
from evorl.envs.goals.task import SuccessFn
from evorl.types import Action, Observation, PyTreeDict


@dataclasses.dataclass(frozen=True)
class Within:
    """Whether the achieved goal is at most ``distance`` from the desired one, bool."""

    distance: float

    def __call__(self, achieved: jax.Array, desired: jax.Array) -> jax.Array:
        return jnp.linalg.norm(achieved - desired) <= self.distance


@dataclasses.dataclass(frozen=True)
class MinusOneUntil:
    """-1 for a step that is not at the goal, 0 for one that is."""

    success_fn: SuccessFn

    def __call__(self, achieved: jax.Array, desired: jax.Array, action: Action, observation: Observation) -> jax.Array:
        return self.success_fn(achieved, desired) - 1.0


def observed(obs: jax.Array) -> EnvState:
    """A state that is all observed, pays nothing and ends nothing."""
    never = jnp.zeros((), jnp.bool_)
    info = PyTreeDict(termination=never, truncation=never, metrics=PyTreeDict())
    return EnvState(env_state=obs, obs=obs, reward=jnp.zeros(()), done=never, info=info)


def all_of_it(env_state: EnvState) -> jax.Array:
    """The goal that is achieved where it is all that is observed."""
    return env_state.obs
