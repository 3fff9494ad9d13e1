"""Locomotion tasks on MuJoCo models: walking, hopping, swimming and standing up; see ``evorl.envs.mujoco_task``."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from evorl.envs.mujoco_task import Array, Physics, Range, Task, Terms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runner(Task):
    """Rewards forward velocity and penalizes actions. By default, the horizontal position is not observed.

    Attributes:
        place_size: number of coordinates of the horizontal position, the first entries of ``qpos``.
        velocity_limit: observed velocities are clipped to ``[-velocity_limit, velocity_limit]``.
    """

    place_size: ClassVar[int] = 1
    velocity_limit: ClassVar[float] = math.inf

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float
    exclude_current_positions_from_observation: bool = True

    def position(self, physics: Physics) -> Array:
        return physics.qpos[..., : self.place_size]

    def observe(self, physics: Physics) -> Array:
        hidden = self.place_size if self.exclude_current_positions_from_observation else 0
        velocities = physics.xp.clip(physics.qvel, -self.velocity_limit, self.velocity_limit)
        return physics.xp.concatenate([physics.qpos[..., hidden:], velocities], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        del healthy
        return {
            "reward_forward": self.forward_reward_weight * velocity[..., 0],
            "reward_ctrl": -self.ctrl_cost_weight * physics.xp.sum(physics.xp.square(actions), axis=-1),
        }

    def measures(self, physics: Physics, velocity: Array) -> Terms:
        axes = range(self.place_size)
        positions = {f"{'xy'[i]}_position": physics.qpos[..., i] for i in axes}
        return positions | {f"{'xy'[i]}_velocity": velocity[..., i] for i in axes}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalfCheetah(Runner):
    """A planar, two-legged animal; episodes do not end when it falls."""

    model_file = "half_cheetah.xml"
    normal_velocities = True
    frame_skip: int = 5
    reset_noise_scale: float = 0.1
    ctrl_cost_weight: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swimmer(Runner):
    """A body of three links that moves in a viscous fluid."""

    model_file = "swimmer.xml"
    place_size = 2
    frame_skip: int = 4
    reset_noise_scale: float = 0.1
    ctrl_cost_weight: float = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walker(Runner):
    """A runner that must not fall: each healthy step is rewarded; by default, an unhealthy state ends the episode."""

    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: Range

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        survive = self.healthy_reward * healthy
        return super().reward_terms(physics, velocity, actions, healthy) | {"reward_survive": survive}

    def ends(self, healthy: Array) -> Array:
        return super().ends(healthy) & self.terminate_when_unhealthy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walker2d(Walker):
    """A planar body on two legs."""

    model_file = "walker2d_v5.xml"
    velocity_limit = 10.0
    frame_skip: int = 4
    reset_noise_scale: float = 5e-3
    ctrl_cost_weight: float = 1e-3
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)

    def healthy(self, physics: Physics) -> Array:
        height, angle = physics.qpos[..., 1], physics.qpos[..., 2]
        return _between(height, self.healthy_z_range) & _between(angle, self.healthy_angle_range)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hopper(Walker):
    """A planar body on one leg."""

    model_file = "hopper.xml"
    velocity_limit = 10.0
    frame_skip: int = 4
    reset_noise_scale: float = 5e-3
    ctrl_cost_weight: float = 1e-3
    healthy_state_range: Range = (-100.0, 100.0)
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)

    def healthy(self, physics: Physics) -> Array:
        height, angle = physics.qpos[..., 1], physics.qpos[..., 2]
        state = physics.xp.concatenate([physics.qpos[..., 2:], physics.qvel], axis=-1)
        upright = _between(height, self.healthy_z_range) & _between(angle, self.healthy_angle_range)
        return upright & physics.xp.all(_between(state, self.healthy_state_range), axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ant(Walker):
    """A body on four legs; contact forces are penalized, too."""

    model_file = "ant.xml"
    place_size = 2
    derived = ("xpos", "cfrc_ext")
    normal_velocities = True
    frame_skip: int = 5
    reset_noise_scale: float = 0.1
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    contact_force_range: Range = (-1.0, 1.0)
    healthy_z_range: Range = (0.2, 1.0)
    include_cfrc_ext_in_observation: bool = True

    def position(self, physics: Physics) -> Array:
        return physics.place_of("torso")[..., :2]

    def observe(self, physics: Physics) -> Array:
        obs = super().observe(physics)
        if not self.include_cfrc_ext_in_observation:
            return obs
        return physics.xp.concatenate([obs, _flat(self._contact_forces(physics)[..., 1:, :])], axis=-1)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        cost = self.contact_cost_weight * _sum_of_squares(physics, self._contact_forces(physics))
        return super().reward_terms(physics, velocity, actions, healthy) | {"reward_contact": -cost}

    def healthy(self, physics: Physics) -> Array:
        xp, height, (low, high) = physics.xp, physics.qpos[..., 2], self.healthy_z_range
        is_finite = xp.all(xp.isfinite(xp.concatenate([physics.qpos, physics.qvel], axis=-1)), axis=-1)
        return is_finite & (low <= height) & (height <= high)

    def _contact_forces(self, physics: Physics) -> Array:
        return physics.xp.clip(physics.derived["cfrc_ext"], *self.contact_force_range)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HumanoidBody(Task):
    """Base class of the humanoids: observes coordinates, and inertias, velocities and forces of all body parts."""

    derived = ("xipos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    frame_skip: int = 5
    reset_noise_scale: float = 1e-2
    ctrl_cost_weight: float = 0.1
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True

    def observe(self, physics: Physics) -> Array:
        parts = [physics.qpos[..., 2 * self.exclude_current_positions_from_observation :], physics.qvel]
        for name in self.derived[1:]:
            if getattr(self, f"include_{name}_in_observation"):
                values = physics.derived[name]
                # The root has no actuators, and the world does not move.
                parts.append(values[..., 6:] if name == "qfrc_actuator" else _flat(values[..., 1:, :]))
        return physics.xp.concatenate(parts, axis=-1)

    def _impact_cost(self, physics: Physics, weight: float, limits: Range) -> Array:
        return physics.xp.clip(weight * _sum_of_squares(physics, physics.derived["cfrc_ext"]), *limits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Humanoid(HumanoidBody, Walker):
    """A body with two legs and two arms; the rewarded velocity is that of the center of mass."""

    model_file = "humanoid.xml"
    place_size = 2
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: Range = (-math.inf, 10.0)
    healthy_reward: float = 5.0
    healthy_z_range: Range = (1.0, 2.0)

    def position(self, physics: Physics) -> Array:
        masses = physics.model.body_mass
        return (physics.xp.einsum("m,...mi->...i", masses, physics.derived["xipos"]) / masses.sum())[..., :2]

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        cost = self._impact_cost(physics, self.contact_cost_weight, self.contact_cost_range)
        return super().reward_terms(physics, velocity, actions, healthy) | {"reward_contact": -cost}

    def healthy(self, physics: Physics) -> Array:
        return _between(physics.qpos[..., 2], self.healthy_z_range)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HumanoidStandup(HumanoidBody):
    """A humanoid lying on the ground, rewarded for the height of its torso, plus 1 per step as in Gymnasium."""

    model_file = "humanoidstandup.xml"
    uph_cost_weight: float = 1.0
    impact_cost_weight: float = 5e-7
    impact_cost_range: Range = (-math.inf, 10.0)

    def reward_terms(self, physics: Physics, velocity: Array, actions: Array, healthy: Array) -> Terms:
        del velocity, healthy
        height = physics.qpos[..., 2]
        return {
            "reward_linup": self.uph_cost_weight * height / physics.model.opt.timestep,
            "reward_quadctrl": -self.ctrl_cost_weight * physics.xp.sum(physics.xp.square(actions), axis=-1),
            "reward_impact": -self._impact_cost(physics, self.impact_cost_weight, self.impact_cost_range),
            "reward_survive": physics.xp.ones_like(height),
        }


def _between(x: Array, limits: Range) -> Array:
    return (limits[0] < x) & (x < limits[1])


def _flat(x: Array) -> Array:
    """Return ``x`` with its last two axes merged."""
    return x.reshape(*x.shape[:-2], -1)


def _sum_of_squares(physics: Physics, x: Array) -> Array:
    return physics.xp.sum(physics.xp.square(x), axis=(-2, -1))
