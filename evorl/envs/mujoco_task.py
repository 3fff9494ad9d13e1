"""Gym-style tasks on MuJoCo models: starts, observations, rewards and ends as Gymnasium defines them in version 5.

A task is numbers and formulas, in NumPy over B rows at once or in ``jax.numpy`` over one; the simulation is elsewhere
(``evorl.envs.mujoco``, ``evorl.envs.mjx``). Shapes are told as of one row: NumPy's arrays lead with axis B. Fields are
the task's options, by Gymnasium's names. Definitions: https://gymnasium.farama.org/environments/mujoco/.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = Any  # of NumPy or of JAX
Terms = dict[str, Array]
Range = tuple[float, float]


class Draws(Protocol):
    """Random numbers as ``numpy.random.Generator`` gives them: each call draws new ones."""

    def uniform(self, low: Any, high: Any, size: Any) -> Array:
        """Uniform numbers of shape ``size``."""
        ...

    def standard_normal(self, size: Any) -> Array:
        """Normally distributed numbers of shape ``size``."""
        ...


@dataclasses.dataclass(frozen=True)
class Physics:
    """Simulated bodies after a step, or where an episode starts.

    Attributes:
        model: the MuJoCo model, or MJX's.
        qpos: ``[nq]``.
        qvel: ``[nv]``.
        derived: the fields of ``MjData`` that the task names in ``derived``. After a step they are what the engine last
            computed, in the last of its substeps: a substep older than ``qpos``.
        bodies: the numbers of the model's bodies by name.
    """

    model: Any
    qpos: Array
    qvel: Array
    derived: Mapping[str, Array]
    bodies: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def xp(self) -> Any:
        """The library of the arrays: ``numpy`` or ``jax.numpy``."""
        return self.qpos.__array_namespace__()

    def place_of(self, body: str) -> Array:
        """Where a body is, ``[3]``; a task that asks names ``xpos`` in ``derived``."""
        return self.derived["xpos"][..., self.bodies[body], :]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """What a body is to do.

    Attributes:
        model_file: the model, one of those that come with Gymnasium.
        max_episode_steps: its usual time limit.
        derived: the fields of ``MjData`` that it reads beside ``qpos`` and ``qvel``.
        normal_velocities: velocities at the start are normally distributed, else uniformly.
        frame_skip: substeps of a step.
        reset_noise_scale: of what is random at the start.
    """

    model_file: ClassVar[str]
    max_episode_steps: ClassVar[int] = 1000
    derived: ClassVar[tuple[str, ...]] = ()
    normal_velocities: ClassVar[bool] = False

    frame_skip: int
    reset_noise_scale: float

    def start(self, rng: Draws, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """``qpos`` ``[nq]`` and ``qvel`` ``[nv]`` at the start of an episode, around those of the model; of one row."""
        scale = self.reset_noise_scale
        qpos = qpos + rng.uniform(-scale, scale, qpos.shape)
        if self.normal_velocities:
            return qpos, qvel + scale * rng.standard_normal(qvel.shape)
        return qpos, qvel + rng.uniform(-scale, scale, qvel.shape)

    def position(self, physics: Physics) -> Array:
        """The position whose velocity is rewarded, ``[k]``."""
        return physics.qpos[..., :0]

    @abc.abstractmethod
    def observe(self, physics: Physics) -> Array:
        """The observation ``[D]``."""

    @abc.abstractmethod
    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        """What the reward is the sum of, by Gymnasium's names, each a number.

        Args:
            physics: after the step.
            velocity: of ``position`` in the step, ``[k]``.
            actions: ``[A]``.
            healthy: what ``healthy`` says, bool.
        """

    def measures(self, physics: Physics, velocity: Array) -> Terms:
        """What else is told of a step, each a number."""
        del physics, velocity
        return {}

    def healthy(self, physics: Physics) -> Array:
        """Whether the task can go on, bool."""
        return physics.xp.ones(physics.qpos.shape[:-1], np.bool_)

    def ends(self, healthy: Array) -> Array:
        """Whether the episode is terminated, bool."""
        return ~healthy


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvertedPendulum(Task):
    """A pole on a cart, upright to 0.2 rad."""

    model_file = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def observe(self, physics: Physics) -> Array:
        """See ``Task.observe``."""
        return physics.xp.concatenate([physics.qpos, physics.qvel], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        """See ``Task.reward_terms``."""
        del physics, velocity, actions
        return {"reward_survive": 1.0 * healthy}

    def healthy(self, physics: Physics) -> Array:
        """See ``Task.healthy``."""
        xp = physics.xp
        return xp.all(xp.isfinite(self.observe(physics)), axis=-1) & (xp.abs(physics.qpos[..., 1]) <= 0.2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InvertedDoublePendulum(Task):
    """A pole on a pole on a cart, whose tip is to stay above 1."""

    model_file = "inverted_double_pendulum.xml"
    derived = ("site_xpos", "qfrc_constraint")
    normal_velocities = True
    frame_skip: int = 5
    reset_noise_scale: float = 0.1
    healthy_reward: float = 10.0

    def observe(self, physics: Physics) -> Array:
        """See ``Task.observe``."""
        xp, cart, angles = physics.xp, physics.qpos[..., :1], physics.qpos[..., 1:]
        velocities = xp.clip(physics.qvel, -10, 10)
        force = xp.clip(physics.derived["qfrc_constraint"][..., :1], -10, 10)
        return xp.concatenate([cart, xp.sin(angles), xp.cos(angles), velocities, force], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        """See ``Task.reward_terms``."""
        del velocity, actions
        tip, lower, upper = physics.derived["site_xpos"][..., 0, :], physics.qvel[..., 1], physics.qvel[..., 2]
        return {
            "reward_survive": self.healthy_reward * healthy,
            "distance_penalty": -(0.01 * tip[..., 0] ** 2 + (tip[..., 2] - 2) ** 2),
            "velocity_penalty": -(1e-3 * lower**2 + 5e-3 * upper**2),
        }

    def healthy(self, physics: Physics) -> Array:
        """See ``Task.healthy``."""
        return physics.derived["site_xpos"][..., 0, 2] > 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reacher(Task):
    """An arm of two links whose fingertip is to meet a target. ``reset_noise_scale`` is that of the links.

    Of NumPy: targets are drawn until one fits.
    """

    model_file = "reacher.xml"
    max_episode_steps = 50
    derived = ("xpos",)
    frame_skip: int = 2
    reset_noise_scale: float = 0.1
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0

    def start(self, rng: Draws, qpos: Array, qvel: Array) -> tuple[Array, Array]:
        """See ``Task.start``; the target, the last two of ``qpos``, is uniform in a disc and stands still."""
        qpos = rng.uniform(-self.reset_noise_scale, self.reset_noise_scale, qpos.shape) + qpos
        qpos[-2:] = _first_that(lambda target: np.linalg.norm(target) < 0.2, lambda: rng.uniform(-0.2, 0.2, 2))
        qvel = qvel + rng.uniform(-0.005, 0.005, qvel.shape)
        qvel[-2:] = 0
        return qpos, qvel

    def observe(self, physics: Physics) -> Array:
        """See ``Task.observe``."""
        angles, away = physics.qpos[..., :2], self._away(physics)[..., :2]
        parts = [np.cos(angles), np.sin(angles), physics.qpos[..., 2:], physics.qvel[..., :2], away]
        return np.concatenate(parts, axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        """See ``Task.reward_terms``."""
        del velocity, healthy
        return {
            "reward_dist": -self.reward_dist_weight * np.linalg.norm(self._away(physics), axis=-1),
            "reward_ctrl": -self.reward_control_weight * np.sum(np.square(actions), axis=-1),
        }

    def _away(self, physics: Physics) -> Array:
        return physics.place_of("fingertip") - physics.place_of("target")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pusher(Task):
    """An arm that is to push an object to a goal. ``reset_noise_scale`` is that of the arm's velocities.

    Of NumPy: places are drawn until one fits.
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
        """See ``Task.start``; the object, the last four of ``qpos`` but two, lies apart from the goal and still."""
        low, high = np.array([-0.3, -0.2]), np.array([0.0, 0.2])
        qpos = qpos.copy()
        qpos[-4:-2] = _first_that(lambda place: np.linalg.norm(place) > 0.17, lambda: rng.uniform(low, high, 2))
        qpos[-2:] = 0
        qvel = qvel + rng.uniform(-self.reset_noise_scale, self.reset_noise_scale, qvel.shape)
        qvel[-4:] = 0
        return qpos, qvel

    def observe(self, physics: Physics) -> Array:
        """See ``Task.observe``."""
        places = [physics.place_of(body) for body in ("tips_arm", "object", "goal")]
        return np.concatenate([physics.qpos[..., :7], physics.qvel[..., :7], *places], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        """See ``Task.reward_terms``."""
        del velocity, healthy
        tip, thing, goal = (physics.place_of(body) for body in ("tips_arm", "object", "goal"))
        return {
            "reward_dist": -self.reward_dist_weight * np.linalg.norm(thing - goal, axis=-1),
            "reward_ctrl": -self.reward_control_weight * np.sum(np.square(actions), axis=-1),
            "reward_near": -self.reward_near_weight * np.linalg.norm(thing - tip, axis=-1),
        }


def _first_that(accepts: Callable[[Array], Any], draw: Callable[[], Array]) -> Array:
    drawn = draw()
    while not accepts(drawn):
        drawn = draw()
    return drawn
