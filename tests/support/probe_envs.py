"""Tiny environments with closed-form optimal values.

A wrong value on one of them locates the fault of an algorithm: the value loss, the observation path, discounting, the
policy loss, both together, bootstrapping at a time limit, or termination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.envs import AutoresetMode, Box, Discrete, Env, EnvState, Space
from evorl.envs.wrappers import VECTOR_ENVS, EpisodeWrapper, VectorEnv
from evorl.types import PyTreeDict
from tests.support.toy_envs import toy_state

TIME_LIMIT = 8
BEST_SHARE = 0.5  # the best continuous action, times the observation if it depends on it


@dataclasses.dataclass(frozen=True)
class Probe:
    """Definition of a probe; ``obs`` is a scalar here, ``[1]`` in the environment.

    Attributes:
        first_obs: key -> observation of the first step, uniformly one of ``firsts``.
        later_obs: (first observation, t) -> the observation at step t.
        reward: (obs, t, score) -> reward of step t; ``score`` is 1 for the best action and less for others.
        value: (obs, discount) -> value of the best policy.
        num_steps: steps until the episode terminates; ``None``: only truncated, after ``TIME_LIMIT`` steps.
        best_action: obs -> best continuous action; ``None`` if actions have no effect.
    """

    first_obs: Callable[[jax.Array], jax.Array]
    later_obs: Callable[[jax.Array, jax.Array], jax.Array]
    reward: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    value: Callable[[jax.Array, float], jax.Array]
    num_steps: int | None
    best_action: Callable[[jax.Array], jax.Array] | None = None

    @property
    def firsts(self) -> tuple[float, ...]:
        """Possible first observations of an episode."""
        return (-1.0, 1.0) if self.first_obs is _sign else (0.0,)


def _zero(key: jax.Array) -> jax.Array:
    return jnp.zeros(())


def _sign(key: jax.Array) -> jax.Array:
    return jax.random.rademacher(key, (), jnp.float32)


def _same(first: jax.Array, t: jax.Array) -> jax.Array:
    return first


def _time(first: jax.Array, t: jax.Array) -> jax.Array:
    return t.astype(jnp.float32)


def _score(obs: jax.Array, t: jax.Array, score: jax.Array) -> jax.Array:
    return score


def _one(obs: jax.Array, t: jax.Array, score: jax.Array) -> jax.Array:
    return jnp.ones(())


PROBES: dict[str, Probe] = {
    "value_is_reward": Probe(_zero, _same, _one, lambda obs, discount: jnp.ones_like(obs), num_steps=1),
    "value_is_observation": Probe(_sign, _same, lambda obs, t, score: obs, lambda obs, discount: obs, num_steps=1),
    "discounting": Probe(
        _zero,
        _time,
        lambda obs, t, score: (t == 1).astype(jnp.float32),
        lambda obs, discount: jnp.where(obs < 0.5, discount, 1.0),
        num_steps=2,
    ),
    "best_action": Probe(
        _zero,
        _same,
        _score,
        lambda obs, discount: jnp.ones_like(obs),
        num_steps=1,
        best_action=lambda obs: jnp.full_like(obs, BEST_SHARE),
    ),
    "observation_dependent_action": Probe(
        _sign,
        _same,
        _score,
        lambda obs, discount: jnp.ones_like(obs),
        num_steps=1,
        best_action=lambda obs: BEST_SHARE * obs,
    ),
    # The same observation at all steps: its value is unique only with bootstrapping at the limit.
    "time_limit": Probe(
        _zero, _same, _one, lambda obs, discount: jnp.full_like(obs, 1 / (1 - discount)), num_steps=None
    ),
    "termination": Probe(
        _zero,
        lambda first, t: 2 * t.astype(jnp.float32) / TIME_LIMIT - 1,
        _one,
        lambda obs, discount: (1 - discount ** (TIME_LIMIT * (1 - obs) / 2)) / (1 - discount),
        num_steps=TIME_LIMIT,
    ),
}


class ProbeEnv(Env):
    """The environment of a probe: observations ``[1]``, actions ``Discrete(2)`` or ``Box(-1, 1, (1,))``.

    In the discrete version action 1 is best where ``best_action`` is positive, else action 0; the best action scores 1,
    the other -1. In the continuous version an action scores 1 minus the squared distance to the best.
    """

    def __init__(self, name: str, continuous: bool = False) -> None:
        self.name, self.continuous, self.probe = name, continuous, PROBES[name]

    @property
    def obs_space(self) -> Space:
        """One unbounded number."""
        return Box(-jnp.inf, jnp.inf, (1,))

    @property
    def action_space(self) -> Space:
        """Two actions, or one number in [-1, 1]."""
        return Box(-1.0, 1.0, (1,)) if self.continuous else Discrete(2)

    def reset(self, key: jax.Array) -> EnvState:
        """Start an episode."""
        first = jnp.asarray(self.probe.first_obs(key), jnp.float32)
        return self._state(first, jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros((), jnp.bool_))

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Make one step."""
        first, t = env_state.env_state.first, env_state.env_state.t
        obs = self.probe.later_obs(first, t)
        reward = self.probe.reward(obs, t, self._score(obs, action))
        ends = jnp.asarray(self.probe.num_steps is not None and t + 1 >= self.probe.num_steps, jnp.bool_)
        return self._state(first, t + 1, reward, ends)

    def value(self, obs: jax.Array, discount: float) -> jax.Array:
        """Return the value of the best policy at observations ``[..., 1]``, shape ``[...]``."""
        return self.probe.value(obs[..., 0], discount)

    def best_action(self, obs: jax.Array) -> jax.Array | None:
        """Return the best actions at observations ``[..., 1]``; ``None`` if actions have no effect."""
        if self.probe.best_action is None:
            return None
        best = self.probe.best_action(obs)
        return best if self.continuous else (best[..., 0] > 0).astype(jnp.int32)

    def _score(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        best = self.best_action(obs[None])
        return jnp.zeros(()) if best is None else score(action, best, self.continuous)

    def _state(self, first: jax.Array, t: jax.Array, reward: jax.Array, ends: jax.Array) -> EnvState:
        obs = self.probe.later_obs(first, t)[None].astype(jnp.float32)
        return toy_state(PyTreeDict(first=first, t=t), obs, reward, ends)

    def _identity(self) -> tuple:
        return self.name, self.continuous


def score(action: jax.Array, best: jax.Array, continuous: bool) -> jax.Array:
    """Return the score of an action: 1 for the best, and less for others."""
    return 1.0 - jnp.square(action - best)[0] if continuous else jnp.where(action == best, 1.0, -1.0)


def make_probe(
    name: str,
    parallel: int = 8,
    autoreset_mode: AutoresetMode = AutoresetMode.NORMAL,
    continuous: bool = False,
) -> VectorEnv:
    """Create a vector env of a probe; its ``unwrapped`` has the values and best actions."""
    env = ProbeEnv(name, continuous)
    limit = env.probe.num_steps or TIME_LIMIT
    return VECTOR_ENVS[autoreset_mode](EpisodeWrapper(env, limit), parallel)
