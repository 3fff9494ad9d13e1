"""Batches of MuJoCo tasks: the contract, saved states, threads, limits, error messages."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.mujoco import ENV_NAMES, MujocoVectorEnv, make_mujoco_simulators
from tests.conformance.host_vector_env import (
    MIDDLE_ROW,
    SEEDS,
    HostVectorEnvContract,
    assert_same,
    play,
    random_actions,
)
from tests.support.errors import raises_naming


class TestHopper(HostVectorEnvContract):
    """Falls early."""

    @staticmethod
    def make(num_envs: int) -> MujocoVectorEnv:
        return make_mujoco_simulators("hopper", num_envs)


class TestHumanoid(HostVectorEnvContract):
    """Observes forces and inertias, which are not part of the state."""

    @staticmethod
    def make(num_envs: int) -> MujocoVectorEnv:
        return make_mujoco_simulators("humanoid", num_envs)


class TestReacher(HostVectorEnvContract):
    """Ends only by its time limit."""

    num_steps = 60

    @staticmethod
    def make(num_envs: int) -> MujocoVectorEnv:
        return make_mujoco_simulators("reacher", num_envs)


def test_number_of_threads_does_not_show() -> None:
    one, three = (make_mujoco_simulators("ant", 5, num_threads=n) for n in (1, 3))
    seeds = np.arange(5, dtype=np.uint64)
    assert_same(one.reset(seeds), three.reset(seeds))
    assert_same(play(one, 20), play(three, 20))
    one.close()
    three.close()


def test_tasks_are_made_on_systems_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    make_mujoco_simulators("hopper", 8).close()


def test_successor_of_the_last_step_is_the_end_not_the_next_start() -> None:
    env = make_mujoco_simulators("hopper", 3)
    start = env.reset(SEEDS)
    for step in range(100):
        obs, reward, termination, *_ = env.step(random_actions(env, step))
        if termination.any():
            break
    row = int(np.argmax(termination))
    fallen = obs[row]
    assert not (fallen[0] > 0.7 and abs(fallen[1]) < 0.2), "an upright body is no end of a hopper's episode"
    assert reward[row] < 1 < start[row, 0]
    again = env.partial_reset(termination, SEEDS)
    np.testing.assert_array_equal(again[row], start[row])


def test_time_limit_truncates_row_by_row() -> None:
    env = make_mujoco_simulators("halfcheetah", 3, max_episode_steps=5)
    env.reset(SEEDS)
    ends = []
    for step in range(7):
        _, _, termination, truncation, _ = env.step(random_actions(env, step))
        assert not termination.any()
        ends.append(truncation.tolist())
        if step == 1:
            env.partial_reset(MIDDLE_ROW, SEEDS)
        if step == 4:
            env.partial_reset(~MIDDLE_ROW, SEEDS)
    assert ends[4] == [True, False, True]
    assert ends[6] == [False, True, False]
    assert not np.any(ends[:4])


def test_usual_time_limits() -> None:
    limits = {name: make_mujoco_simulators(name, 1).max_episode_steps for name in ENV_NAMES}
    assert limits == {**dict.fromkeys(ENV_NAMES, 1000), "reacher": 50, "pusher": 100}


def test_options_reach_the_task() -> None:
    env = make_mujoco_simulators("hopper", 1, exclude_current_positions_from_observation=False, healthy_z_range=[2, 9])
    assert env.obs_space.shape == (12,)
    env.reset(SEEDS[:1])
    assert env.step(np.zeros((1, 3), np.float32))[2].all(), "below the healthy heights the episode ends"
    idle = make_mujoco_simulators("hopper", 1, ctrl_cost_weight=2.0)
    idle.reset(SEEDS[:1])
    info = idle.step(np.ones((1, 3), np.float32))[-1]
    assert info["reward_ctrl"] == pytest.approx(-6.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hoper", {}, ("task of host", "'hoper'", "'hopper'")),
        ("hopper", {"healthy_z_rnge": [0, 1]}, ("host/hopper", "'healthy_z_rnge'", "'healthy_z_range'")),
        ("swimmer", {"healthy_reward": 1.0}, ("host/swimmer", "'healthy_reward'")),
        ("hopper", {"healthy_z_range": [2, 1]}, ("healthy_z_range", "two numbers", "got [2, 1]")),
        ("hopper", {"frame_skip": 0}, ("frame_skip", "got 0")),
        *((name, {"reset_noise_scale": -1}, ("env.reset_noise_scale", "at least 0", "got -1")) for name in ENV_NAMES),
        ("pusher", {"reset_noise_scale": float("inf")}, ("env.reset_noise_scale", "at least 0", "got inf")),
        ("hopper", {"terminate_when_unhealthy": 3}, ("terminate_when_unhealthy", "true or false", "got 3")),
        ("hopper", {"num_threads": 0}, ("num_threads", "got 0")),
    ],
)
def test_errors_in_words(name: str, options: dict, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        make_mujoco_simulators(name, 2, **options)


def test_wrong_actions_and_states_are_refused() -> None:
    env = make_mujoco_simulators("hopper", 2)
    env.reset(SEEDS[:2])
    with raises_naming(ValueError, "actions [2, 3]", "got [2, 1]"):
        env.step(np.zeros((2, 1)))
    with raises_naming(ValueError, "2 environments of Hopper"):
        env.set_state(make_mujoco_simulators("walker2d", 2).get_state())


def test_unstable_simulation_is_an_error_with_its_row() -> None:
    env = make_mujoco_simulators("swimmer", 2)
    env.reset(SEEDS[:2])
    state = env.get_state().view(np.float64).copy()
    state[1, 3] = np.nan  # an angle of the second environment
    env.set_state(state.view(np.uint8))
    with raises_naming(HostEnvError, "Swimmer", "environment 1", "step 1"):
        env.step(np.zeros((2, 2)))


@pytest.mark.usefixtures("few_objects")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # MuJoCo, after a failed creation
def test_picture_or_the_reason_for_none() -> None:
    env = make_mujoco_simulators("halfcheetah", 1)
    env.reset(SEEDS[:1])
    state = env.get_state()
    picture, reason = None, ""
    try:
        picture = env.render()
    except HostEnvError as error:
        reason = str(error)
    gc.collect()
    np.testing.assert_array_equal(env.get_state(), state)
    if picture is None:
        assert "MUJOCO_GL" in reason  # no renderer on this machine
    else:
        assert (picture.shape, picture.dtype) == ((480, 480, 3), np.uint8)
        assert picture.std() > 1, "a picture of something"


def test_neither_mujoco_nor_gymnasium_is_imported_before_a_task_is_made() -> None:
    code = (
        "import sys, evorl.envs.mujoco as m\nprint([x for x in ('mujoco', 'gymnasium') if x in sys.modules])\n"
        "m.make_mujoco_simulators('ant', 2)\nprint('gymnasium.envs.mujoco' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[:2] == ["[]", "False"]
