"""Pendulum and arm tasks: the numbers of Gymnasium's environments, step by step, and initial states."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.envs.mujoco_task import InvertedDoublePendulum, InvertedPendulum, Physics, Pusher, Reacher
from tests.support.gymnasium_peer import compare_with_gymnasium


@pytest.mark.parametrize(
    ("name", "gymnasium_id"),
    [
        ("inverted_double_pendulum", "InvertedDoublePendulum-v5"),
        ("inverted_pendulum", "InvertedPendulum-v5"),
        ("pusher", "Pusher-v5"),
        ("reacher", "Reacher-v5"),
    ],
)
def test_equals_gymnasium(name: str, gymnasium_id: str) -> None:
    compare_with_gymnasium(name, gymnasium_id)


def test_equals_gymnasium_with_options() -> None:
    compare_with_gymnasium("reacher", "Reacher-v5", reward_dist_weight=2.0, frame_skip=3)
    compare_with_gymnasium("pusher", "Pusher-v5", reward_near_weight=0.0, reward_control_weight=1.0)
    compare_with_gymnasium("inverted_double_pendulum", "InvertedDoublePendulum-v5", healthy_reward=3.0)


def test_targets_lie_in_the_disc_and_objects_apart_from_the_goal() -> None:
    rng = np.random.default_rng(0)
    targets = np.array([Reacher().start(rng, np.zeros(4), np.zeros(4))[0][-2:] for _ in range(200)])
    assert np.linalg.norm(targets, axis=1).max() < 0.2
    assert np.ptp(targets, axis=0).min() > 0.3
    places = np.array([Pusher().start(rng, np.zeros(11), np.zeros(11))[0][-4:-2] for _ in range(200)])
    assert np.linalg.norm(places, axis=1).min() > 0.17
    assert places[:, 0].max() <= 0


def test_start_leaves_the_model_alone() -> None:
    qpos, qvel = np.zeros(4), np.zeros(4)
    for task in (Reacher(), InvertedPendulum(), InvertedDoublePendulum()):
        task.start(np.random.default_rng(0), qpos, qvel)
    assert not qpos.any()
    assert not qvel.any()


def test_pendulum_is_down_where_it_is_no_number() -> None:
    angles = np.array([[0.0, 0.1], [0.0, 0.2], [0.0, 0.21], [0.0, np.nan]])
    task = InvertedPendulum()
    healthy = task.healthy(Physics(None, angles, np.zeros((4, 2)), {}))
    assert task.ends(healthy).tolist() == [False, False, True, True]
