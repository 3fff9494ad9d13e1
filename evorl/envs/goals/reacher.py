"""Brax's reacher, an arm with two joints in a plane, as a goal environment: the fingertip must reach a position."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.brax import make_brax_adapter
from evorl.envs.env import EnvState
from evorl.envs.goals.sparse import MinusOneUntil, Within
from evorl.envs.space import Box
from evorl.envs.wrappers.goal import GoalWrapper
from evorl.envs.wrappers.observation import ObsSelectWrapper
from evorl.ops.random import as_typed_key

RADIUS = 0.2  # radius of the disc of goals around the shoulder, in meters, as for brax's targets
REACH = 0.02  # distance at which the goal counts as reached, in meters
LINKS = (0.1, 0.11)  # lengths of the upper and the lower arm, in meters
# Components of brax's observation: cosines and sines of both joints, and the fingertip's velocity, without the target.
_ARM_COMPONENTS = (0, 1, 2, 3, 6, 7)


class Disc(Box):
    """Positions ``[2]`` within ``radius`` of the origin; samples are uniformly distributed over the area."""

    def __init__(self, radius: float) -> None:
        super().__init__(-radius, radius, (2,))
        self.radius = radius
        self._key = (*self._key, "disc")

    def sample(self, key: jax.Array) -> jax.Array:
        """Return a position ``[2]``, drawn uniformly from the disc."""
        angle_key, radius_key = jax.random.split(as_typed_key(key))
        angle = jax.random.uniform(angle_key, maxval=2.0 * jnp.pi)
        distance = self.radius * jnp.sqrt(jax.random.uniform(radius_key))
        return distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])

    def contains(self, x: Any) -> jax.Array:
        """Return bools ``[...]``, true where the positions ``x``, ``[..., 2]``, are in the disc."""
        inside = super().contains(x)
        if jnp.shape(x)[-1:] != self.shape:
            return inside
        return inside & (jnp.linalg.norm(jnp.asarray(x), axis=-1) <= self.radius)


def make_reacher(backend: str | None = None) -> GoalWrapper:
    """Create the reacher. Steps that end with the fingertip within ``REACH`` of the goal have reward 0, others -1.

    Args:
        backend: brax physics backend, see ``create_wrapped_brax_env``; ``None`` for ``"generalized"``.
    """
    is_near = Within(REACH)
    arm = ObsSelectWrapper(make_brax_adapter("reacher", backend), _ARM_COMPONENTS)
    return GoalWrapper(arm, Disc(RADIUS), _fingertip, MinusOneUntil(is_near), is_near)


def _fingertip(env_state: EnvState) -> jax.Array:
    cosines, sines = env_state.obs[:2], env_state.obs[2:4]
    both = jnp.stack([cosines[0] * cosines[1] - sines[0] * sines[1], sines[0] * cosines[1] + cosines[0] * sines[1]])
    return LINKS[0] * jnp.stack([cosines[0], sines[0]]) + LINKS[1] * both
