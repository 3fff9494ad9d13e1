"""Sphere function with linear projections (Fontaine et al. 2020, https://arxiv.org/abs/1912.02400), as an environment.

An episode is one step whose action is the solution. With the layer ``no_features`` a policy consists of its n biases
alone, which start at 0. The table of pyribs that it reproduces has n = 100.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs import Box, Env, EnvState, Space
from evorl.types import PyTreeDict

BOUND = 5.12
CENTER = 0.4 * BOUND


class Sphere(Env):
    """Rewards the solution with up to 100, at the center; the metric ``measures`` is its descriptor, ``[2]``.

    Args:
        n: number of coordinates of a solution; even.
    """

    def __init__(self, n: int = 100) -> None:
        self.n = n

    @property
    def max_episode_steps(self) -> int:
        """1: the only action is the solution."""
        return 1

    @property
    def obs_space(self) -> Space:
        """Observations without information, ``[1]``."""
        return Box(0.0, 1.0, (1,))

    @property
    def action_space(self) -> Space:
        """Unbounded solutions, ``[n]``."""
        return Box(-jnp.inf, jnp.inf, (self.n,))

    def reset(self, key: jax.Array) -> EnvState:
        return self._state(jnp.zeros(()), jnp.zeros(2), False)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """Reward the solution: 100 at the center, 0 at the distance of the farthest corner, negative beyond."""
        worst = self.n * (BOUND + CENTER) ** 2
        reward = 100.0 * (1.0 - jnp.square(action - CENTER).sum() / worst)
        clipped = jnp.where(jnp.abs(action) > BOUND, BOUND / action, action)
        return self._state(reward, clipped.reshape(2, -1).sum(axis=1), True)

    def _state(self, reward: jax.Array, measures: jax.Array, ended: bool) -> EnvState:
        ended_now = jnp.asarray(ended)
        info = PyTreeDict(
            termination=ended_now, truncation=jnp.zeros_like(ended_now), metrics=PyTreeDict(measures=measures)
        )
        return EnvState(jnp.zeros(()), jnp.zeros(1), reward, ended_now, info)

    def _identity(self) -> Any:
        return self.n


def no_features(x: jax.Array) -> jax.Array:
    """Return features of size 0, ``[..., 0]``: the next layer has only biases. Requires ``orthogonal=true``."""
    return x[..., :0]
