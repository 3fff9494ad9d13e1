"""Locomotion tasks: the numbers of Gymnasium's environments, step by step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evorl.envs.mujoco_runners import Ant, Hopper, Humanoid
from evorl.envs.mujoco_task import Physics
from tests.support.gymnasium_peer import compare_with_gymnasium


@pytest.mark.parametrize(
    ("name", "gymnasium_id"),
    [
        ("ant", "Ant-v5"),
        ("halfcheetah", "HalfCheetah-v5"),
        ("hopper", "Hopper-v5"),
        ("humanoid", "Humanoid-v5"),
        ("humanoidstandup", "HumanoidStandup-v5"),
        ("swimmer", "Swimmer-v5"),
        ("walker2d", "Walker2d-v5"),
    ],
)
def test_equals_gymnasium(name: str, gymnasium_id: str) -> None:
    compare_with_gymnasium(name, gymnasium_id)


@pytest.mark.parametrize(
    ("name", "gymnasium_id", "options"),
    [
        ("hopper", "Hopper-v5", {"terminate_when_unhealthy": False, "healthy_state_range": (-3.0, 3.0)}),
        ("ant", "Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_force_range": (-0.1, 0.2)}),
        ("ant", "Ant-v5", {"terminate_when_unhealthy": False, "contact_cost_weight": 0.1}),
        ("humanoid", "Humanoid-v5", {"include_cinert_in_observation": False, "contact_cost_range": (0.001, 0.01)}),
        ("humanoidstandup", "HumanoidStandup-v5", {"include_cvel_in_observation": False, "ctrl_cost_weight": 1.0}),
        ("swimmer", "Swimmer-v5", {"exclude_current_positions_from_observation": False, "frame_skip": 2}),
        ("walker2d", "Walker2d-v5", {"forward_reward_weight": 3.0, "healthy_angle_range": (-0.1, 0.1)}),
    ],
)
def test_equals_gymnasium_with_options(name: str, gymnasium_id: str, options: dict) -> None:
    compare_with_gymnasium(name, gymnasium_id, **options)


def _physics(qpos: list[float], qvel: list[float]) -> Physics:
    return Physics(None, np.array([qpos]), np.array([qvel]), {})


@pytest.mark.parametrize(("height", "angle", "speed"), [(0.7, 0, 0), (1.0, 0.2, 0), (1.0, 0.0, 100.0)])
def test_hopper_is_unhealthy_at_its_limits(height: float, angle: float, speed: float) -> None:
    task = Hopper()
    assert task.healthy(_physics([0.0, 1.0, 0.0, 0, 0, 0], [0.0] * 6)).all()
    at_limit = _physics([0.0, height, angle, 0, 0, 0], [speed] + [0.0] * 5)
    healthy = task.healthy(at_limit)
    assert not healthy.any()
    assert task.ends(healthy).all()
    assert not dataclasses.replace(task, terminate_when_unhealthy=False).ends(healthy).any()


def test_ant_is_healthy_at_its_limits_and_humanoid_is_not() -> None:
    at_limit = _physics([0.0, 0.0, 1.0], [0.0])
    assert Ant().healthy(at_limit).all()
    assert not Humanoid().healthy(at_limit).any()
