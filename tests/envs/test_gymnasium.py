"""Gymnasium's environments as simulators, in this process and in separate processes."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from evorl.envs import Box, create_env
from evorl.envs.gymnasium import (
    AsyncGymnasiumEnv,
    InProcessGymnasiumEnv,
    make_gymnasium_simulators,
)
from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from tests.conformance.host_vector_env import NUM_ENVS, SEEDS, HostVectorEnvContract, assert_same
from tests.support.errors import raises_naming
from tests.support.host_envs import Faulty


class TestInProcess(HostVectorEnvContract):
    @staticmethod
    def make(num_envs: int) -> HostVectorEnv:
        return make_gymnasium_simulators("CartPole-v1", num_envs, max_episode_steps=15)


def test_processes_give_what_this_process_gives() -> None:
    inside, outside = (
        make_gymnasium_simulators("Pendulum-v1", NUM_ENVS, vectorization=how, max_episode_steps=3)
        for how in ("in_process", "async")
    )
    assert_same(inside.reset(SEEDS), outside.reset(SEEDS))
    for _ in range(3):
        actions = np.full((NUM_ENVS, 1), 0.3, np.float32)
        one, other = inside.step(actions), outside.step(actions)
        assert_same(one[:4], other[:4])
    assert one[3].all()
    mask = np.array([True, False, True])
    assert_same(inside.partial_reset(mask, SEEDS), outside.partial_reset(mask, SEEDS), mask)
    inside.close()
    outside.close()


def test_a_worker_that_fails_is_told_in_a_sentence() -> None:
    env = AsyncGymnasiumEnv(functools.partial(Faulty, "raise", 1), 2)
    env.reset(SEEDS[:2])
    with raises_naming(HostEnvError, "Gymnasium worker", "failed in step", "motor is burnt"):
        env.step(np.zeros(2, np.int64))
    env.close()


class Camera(gymnasium.Env):
    """Environment with observations of several kinds."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,))])}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._seen(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self._seen(int(action)), 1.0, False, False, {}

    @staticmethod
    def _seen(action: int) -> dict:
        return {"image": np.full((2, 2), action, np.uint8), "place": (np.full(2, action / 2, np.float32),)}


def test_observations_of_several_kinds_and_one_entry_of_them() -> None:
    env = InProcessGymnasiumEnv(Camera, 2)
    env.reset(SEEDS[:2])
    obs = env.step(np.array([0, 1]))[0]
    assert env.obs_space.contains(obs).all()
    np.testing.assert_array_equal(obs["image"][:, 0, 0], [0, 1])
    np.testing.assert_array_equal(obs["place"][0][:, 0], [0.0, 0.5])
    only = InProcessGymnasiumEnv(Camera, 2, obs_key="image")
    assert only.obs_space == Box(0, 255, (2, 2), np.uint8)
    np.testing.assert_array_equal(only.reset(SEEDS[:2]), np.zeros((2, 2, 2)))
    with raises_naming(ValueError, "'imag'", "'image'"):
        InProcessGymnasiumEnv(Camera, 2, obs_key="imag")
    with raises_naming(ValueError, "entry of a dict", "obs_key"):
        InProcessGymnasiumEnv(Faulty, 2, obs_key="image")


def test_metrics_come_from_info() -> None:
    env = create_env({"factory": "tests.support.host_envs:Faulty"}, parallel=2)
    env.close()
    simulators = InProcessGymnasiumEnv(functools.partial(Faulty, "info", 2), 2, metrics=["height"])
    simulators.reset(SEEDS[:2])
    np.testing.assert_array_equal(simulators.step(np.zeros(2))[4]["height"], [0.5, 0.5])
    with raises_naming(HostEnvError, "environment 0", "'height'", "env.metrics"):
        simulators.step(np.zeros(2))


def test_wrappers_are_named_in_the_config() -> None:
    wrappers = ["TimeAwareObservation", {"name": "FrameStackObservation", "stack_size": 3}]
    env = create_env("gymnasium/CartPole-v1", wrappers=wrappers, parallel=2)
    assert env.obs_space.shape == (3, 5)
    assert env.reset(jax.random.key(0)).obs.shape == (2, 3, 5)
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("CartPol-v1", {}, ("'CartPol-v1'", "'CartPole-v1'")),
        ("CartPole-v1", {"gravty": 1}, ("CartPole-v1", "gravty")),
        ("CartPole-v1", {"wrappers": ["TimeAware"]}, ("Gymnasium wrapper", "'TimeAware'")),
        (
            "CartPole-v1",
            {"wrappers": [{"name": "FrameStackObservation"}]},
            ("wrap CartPole-v1", "FrameStackObservation"),
        ),
        ("CartPole-v1", {"vectorization": "asinc"}, ("'asinc'", "'async'")),
        ("no_such_package:Env-v0", {}, ("no_such_package",)),
    ],
)
def test_what_there_is_not_is_refused_in_words(name: str, options: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        create_env(f"gymnasium/{name}", **options)


def test_a_picture_of_the_first_environment() -> None:
    env = create_env("gymnasium/CartPole-v1", parallel=2, render_mode="rgb_array_list")
    env.close()
    simulators = InProcessGymnasiumEnv(Camera, 1)
    with pytest.raises(NotImplementedError):
        simulators.render()
