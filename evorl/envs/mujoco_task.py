"""Gym-style tasks on MuJoCo models: start states, observations, rewards and terminations of Gymnasium's version 5.

A task consists of constants and formulas. ``evorl.envs.mujoco`` evaluates the formulas in NumPy for B environments at
once. ``evorl.envs.mjx`` evaluates them in ``jax.numpy`` for one environment. Shapes are for one environment; NumPy
arrays have a leading axis B, except in ``start``. The fields of a task are its options, named as in Gymnasium.
Gymnasium's documentation defines tasks and options: https://gymnasium.farama.org/environments/mujoco/.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import numpy as np

from evorl.fields import Within

Array: TypeAlias = Any  # NumPy or JAX array
Terms = dict[str, Array]
Range = tuple[float, float]


class Draws(Protocol):
    """Random number generator with some methods of ``numpy.random.Generator``: each call returns new numbers."""

    def uniform(self, low: Any, high: Any, size: Any) -> Array:
        """Return samples of the uniform distribution on ``[low, high)``, of shape ``size``."""
        ...

    def standard_normal(self, size: Any) -> Array:
        """Return samples of the standard normal distribution, of shape ``size``."""
        ...


@dataclasses.dataclass(frozen=True)
class Physics:
    """State of the simulated bodies after a step, or at the start of an episode.

    Attributes:
        model: the ``mujoco.MjModel`` or ``mjx.Model``.
        qpos: generalized positions ``[nq]``.
        qvel: generalized velocities ``[nv]``.
        derived: the fields of ``MjData`` that the task lists in ``derived``. After a step they have the values at the
            beginning of the last substep, one substep before ``qpos``.
        bodies: ids of the model's bodies by name.
    """

    model: Any
    qpos: Array
    qvel: Array
    derived: Mapping[str, Array]
    bodies: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def xp(self) -> Any:
        """The array library, ``numpy`` or ``jax.numpy``."""
        return self.qpos.__array_namespace__()

    def place_of(self, body: str) -> Array:
        """Return the position ``[3]`` of the body named ``body``; the task must list ``xpos`` in ``derived``."""
        return self.derived["xpos"][..., self.bodies[body], :]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Definition of a task: start state, observation, reward and termination.

    Attributes:
        model_file: name of the model file, which is part of Gymnasium.
        max_episode_steps: default time limit in steps.
        derived: the fields of ``MjData`` that the task reads in addition to ``qpos`` and ``qvel``.
        normal_velocities: true if initial velocities are normally distributed; otherwise they are uniform.
        frame_skip: number of physics substeps per step.
        reset_noise_scale: scale of the noise of the start state.
    """

    model_file: ClassVar[str]
    max_episode_steps: ClassVar[int] = 1000
    derived: ClassVar[tuple[str, ...]] = ()
    normal_velocities: ClassVar[bool] = False

    frame_skip: int
    reset_noise_scale: Annotated[float, Within("[0, inf)")]

    def start(self, rng: Draws, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """Return the initial ``qpos`` ``[nq]`` and ``qvel`` ``[nv]`` of an episode: the arguments plus noise."""
        scale = self.reset_noise_scale
        qpos = qpos + rng.uniform(-scale, scale, qpos.shape)
        if self.normal_velocities:
            return qpos, qvel + scale * rng.standard_normal(qvel.shape)
        return qpos, qvel + rng.uniform(-scale, scale, qvel.shape)

    def position(self, physics: Physics) -> Array:
        """Return the position ``[k]`` from which ``velocity`` in other methods is computed; by default k = 0."""
        return physics.qpos[..., :0]

    @abc.abstractmethod
    def observe(self, physics: Physics) -> Array:
        """Return the observation ``[D]``."""

    @abc.abstractmethod
    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        """Return the terms whose sum is the reward: scalars, by their names in Gymnasium.

        Args:
            physics: bodies after the step.
            velocity: mean velocity of ``position`` during the step, ``[k]``.
            actions: actions of the step, ``[A]``.
            healthy: result of ``healthy``, bool.
        """

    def measures(self, physics: Physics, velocity: Array) -> Terms:
        """Return additional numbers of a step for ``info``, scalars by name; by default empty."""
        del physics, velocity
        return {}

    def healthy(self, physics: Physics) -> Array:
        """Return True if the bodies are in a valid state for the task, bool; by default always."""
        return physics.xp.ones(physics.qpos.shape[:-1], np.bool_)

    def ends(self, healthy: Array) -> Array:
        """Return True if the episode is terminated, bool; by default if not ``healthy``."""
        return ~healthy


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvertedPendulum(Task):
    """A pole on a cart; the pole must stay within 0.2 rad of upright."""

    model_file = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def observe(self, physics: Physics) -> Array:
        return physics.xp.concatenate([physics.qpos, physics.qvel], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        del physics, velocity, actions
        return {"reward_survive": 1.0 * healthy}

    def healthy(self, physics: Physics) -> Array:
        xp = physics.xp
        return xp.all(xp.isfinite(self.observe(physics)), axis=-1) & (xp.abs(physics.qpos[..., 1]) <= 0.2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulum(Task):
    """A double pole on a cart; the tip of the pole must stay above a height of 1 m."""

    model_file = "inverted_double_pendulum.xml"
    derived = ("site_xpos", "qfrc_constraint")
    normal_velocities = True
    frame_skip: int = 5
    reset_noise_scale: float = 0.1
    healthy_reward: float = 10.0

    def observe(self, physics: Physics) -> Array:
        xp, cart, angles = physics.xp, physics.qpos[..., :1], physics.qpos[..., 1:]
        velocities = xp.clip(physics.qvel, -10, 10)
        force = xp.clip(physics.derived["qfrc_constraint"][..., :1], -10, 10)
        return xp.concatenate([cart, xp.sin(angles), xp.cos(angles), velocities, force], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        del velocity, actions
        tip, lower, upper = physics.derived["site_xpos"][..., 0, :], physics.qvel[..., 1], physics.qvel[..., 2]
        return {
            "reward_survive": self.healthy_reward * healthy,
            "distance_penalty": -(0.01 * tip[..., 0] ** 2 + (tip[..., 2] - 2) ** 2),
            "velocity_penalty": -(1e-3 * lower**2 + 5e-3 * upper**2),
        }

    def healthy(self, physics: Physics) -> Array:
        return physics.derived["site_xpos"][..., 0, 2] > 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reacher(Task):
    """An arm of two links; its fingertip must reach a target. ``reset_noise_scale`` applies to the joint angles.

    NumPy only, because a loop samples targets until one is valid.
    """

    model_file = "reacher.xml"
    max_episode_steps = 50
    derived = ("xpos",)
    frame_skip: int = 2
    reset_noise_scale: float = 0.1
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0

    def start(self, rng: Draws, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """Return a start state; the target, ``qpos[-2:]``, is uniform in a disc with radius 0.2 m, and at rest."""
        qpos = rng.uniform(-self.reset_noise_scale, self.reset_noise_scale, qpos.shape) + qpos
        qpos[-2:] = _draw_until(lambda target: np.linalg.norm(target) < 0.2, lambda: rng.uniform(-0.2, 0.2, 2))
        qvel = qvel + rng.uniform(-0.005, 0.005, qvel.shape)
        qvel[-2:] = 0
        return qpos, qvel

    def observe(self, physics: Physics) -> Array:
        angles, offset = physics.qpos[..., :2], self._target_offset(physics)[..., :2]
        parts = [np.cos(angles), np.sin(angles), physics.qpos[..., 2:], physics.qvel[..., :2], offset]
        return np.concatenate(parts, axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        del velocity, healthy
        return {
            "reward_dist": -self.reward_dist_weight * np.linalg.norm(self._target_offset(physics), axis=-1),
            "reward_ctrl": -self.reward_control_weight * np.sum(np.square(actions), axis=-1),
        }

    def _target_offset(self, physics: Physics) -> Array:
        return physics.place_of("fingertip") - physics.place_of("target")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pusher(Task):
    """An arm that must push an object to a goal. ``reset_noise_scale`` applies to the velocities of the joints.

    NumPy only, because a loop samples object positions until one is valid.
    """

    model_file = "pusher_v5.xml"
    max_episode_steps = 100
    derived = ("xpos",)
    frame_skip: int = 5
    reset_noise_scale: float = 0.005
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1

    def start(self, rng: Draws, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """Return a start state; the object, ``qpos[-4:-2]``, is at rest, more than 0.17 m from the goal."""
        low, high = np.array([-0.3, -0.2]), np.array([0.0, 0.2])
        qpos = qpos.copy()
        qpos[-4:-2] = _draw_until(lambda position: np.linalg.norm(position) > 0.17, lambda: rng.uniform(low, high, 2))
        qpos[-2:] = 0
        qvel = qvel + rng.uniform(-self.reset_noise_scale, self.reset_noise_scale, qvel.shape)
        qvel[-4:] = 0
        return qpos, qvel

    def observe(self, physics: Physics) -> Array:
        positions = [physics.place_of(body) for body in ("tips_arm", "object", "goal")]
        return np.concatenate([physics.qpos[..., :7], physics.qvel[..., :7], *positions], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        del velocity, healthy
        tip, target_object, goal = (physics.place_of(body) for body in ("tips_arm", "object", "goal"))
        return {
            "reward_dist": -self.reward_dist_weight * np.linalg.norm(target_object - goal, axis=-1),
            "reward_ctrl": -self.reward_control_weight * np.sum(np.square(actions), axis=-1),
            "reward_near": -self.reward_near_weight * np.linalg.norm(target_object - tip, axis=-1),
        }


def _draw_until(accepts: Callable[[Array], Any], draw: Callable[[], Array]) -> Array:
    drawn = draw()
    while not accepts(drawn):
        drawn = draw()
    return drawn
