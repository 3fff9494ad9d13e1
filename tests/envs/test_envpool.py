"""EnvPool's environments on the host: the contract, starts and ends of episodes, spaces, error messages."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest

from evorl.assembly import seeded_env
from evorl.envs.action_conversion import ActionConversion
from evorl.envs.envpool import EnvPoolTask, EnvPoolVectorEnv, make_envpool_simulators
from evorl.envs.factory import create_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete
from evorl.runs.spec import RunSpec
from tests.conformance.host_vector_env import (
    MIDDLE_ROW,
    OTHER_SEEDS,
    SEEDS,
    HostVectorEnvContract,
    assert_same,
    random_actions,
)
from tests.support.errors import raises_naming


class TestCartPole(HostVectorEnvContract):
    """Terminates by falling."""

    starts_by_seed = False

    @staticmethod
    def make(num_envs: int) -> EnvPoolVectorEnv:
        return make_envpool_simulators("CartPole-v1", num_envs, num_threads=2)


class TestHopper(HostVectorEnvContract):
    """Computes in float64, and reports a metric."""

    starts_by_seed = False

    @staticmethod
    def make(num_envs: int) -> EnvPoolVectorEnv:
        return make_envpool_simulators("Hopper-v5", num_envs, metrics=["x_velocity"], max_episode_steps=15)


class TestReach(HostVectorEnvContract):
    """Has named observations."""

    starts_by_seed = False

    @staticmethod
    def make(num_envs: int) -> EnvPoolVectorEnv:
        return make_envpool_simulators("FetchReach-v4", num_envs, max_episode_steps=12)


def test_spaces() -> None:
    cartpole = EnvPoolTask("CartPole-v1")
    assert cartpole.action_space == Discrete(2)
    assert (cartpole.obs_space.shape, cartpole.obs_space.dtype) == ((4,), np.float32)
    assert cartpole.max_episode_steps == 500
    hopper = EnvPoolTask("Hopper-v5")
    assert hopper.action_space == Box(-1.0, 1.0, (3,))
    assert hopper.pool_actions(np.zeros((2, 3), np.float32)).dtype == np.float64
    assert isinstance(EnvPoolTask("FetchReach-v4").obs_space, DictSpace)
    assert EnvPoolTask("Blackjack-v1").max_episode_steps is None


def test_pictures_have_their_channels_last() -> None:
    env = make_envpool_simulators("Pong-v5", 2)
    assert (env.obs_space.shape, env.obs_space.dtype) == ((84, 84, 4), np.uint8)
    start = env.reset(SEEDS[:2])
    obs = env.step(np.array([2, 3]))[0]
    assert start.shape == obs.shape == (2, 84, 84, 4)
    np.testing.assert_array_equal(obs[..., :3], start[..., 1:])  # the previous frames except for the oldest


@pytest.mark.parametrize("host", ["loop", "compiled"])
def test_channels_are_moved_only_once(host: str) -> None:
    envs = [create_env("envpool/Pong-v5", host=host, channels=channels) for channels in ("last", "first")]
    assert envs[0].obs_space == envs[1].obs_space == Box(0, 255, (84, 84, 4), np.uint8)


def test_several_choices_stay_several_for_the_pool() -> None:
    env = make_envpool_simulators("Tetris-v0", 3)
    assert env.action_space == MultiDiscrete([4, 10])
    assert ActionConversion(env.action_space).agent_space == Discrete(40)
    start = env.reset(SEEDS)
    obs, *_ = env.step(ActionConversion(env.action_space).to_env(np.array([0, 5, 5])))
    assert np.all(env.obs_space.contains(obs))
    assert not start["grid"].any()
    assert obs["grid"].any(axis=(1, 2)).all()


def test_ended_row_gives_its_successor_and_is_restarted_by_partial_reset_only() -> None:
    env = make_envpool_simulators("CartPole-v1", 3)
    env.reset(SEEDS)
    for _ in range(20):
        obs, reward, termination, _, _ = env.step(np.ones(3, np.int32))
        if termination.any():
            break
    assert abs(obs[termination, 2]).min() > 0.2, "the pole has fallen"
    assert reward.all()
    start = env.partial_reset(termination, OTHER_SEEDS)
    assert abs(start[termination]).max() <= 0.05
    after, reward, ended, _, _ = env.step(np.ones(3, np.int32))
    assert reward.all(), "no step is spent on a reset"
    row = int(np.argmax(termination))
    assert not ended[row]
    assert after[row, 0] == pytest.approx(start[row, 0] + 0.02 * start[row, 1], abs=1e-6), "a step of the dynamics"


def test_time_limit_is_truncation() -> None:
    env = make_envpool_simulators("Pendulum-v1", 3, max_episode_steps=6)
    assert env.max_episode_steps == 6
    env.reset(SEEDS)
    ends = []
    for step in range(8):
        _, _, termination, truncation, _ = env.step(random_actions(env, step))
        assert not termination.any()
        ends.append(truncation.tolist())
        if step == 1:
            env.partial_reset(MIDDLE_ROW, SEEDS)
        if step == 5:
            env.partial_reset(~MIDDLE_ROW, SEEDS)
    assert ends[5] == [True, False, True]
    assert ends[7] == [False, True, False]
    assert not np.any(ends[:5])


def test_pools_are_made_again_only_where_that_is_wanted() -> None:
    env = make_envpool_simulators("CartPole-v1", 3, reseed=False)
    first = env.reset(SEEDS)
    second = env.reset(SEEDS)
    assert np.any(first != second)
    again = make_envpool_simulators("CartPole-v1", 3, reseed=False)
    assert_same([again.reset(SEEDS), again.reset(SEEDS)], [first, second])


def test_all_words_of_a_seed_count() -> None:
    env = make_envpool_simulators("CartPole-v1", 3)
    starts = env.reset(np.array([1, 1 + 2**33, 1 + 2**31], np.uint64))
    assert np.any(starts[0] != starts[1])


def test_picture_of_the_first_environment() -> None:
    env = make_envpool_simulators("CartPole-v1", 2, render_mode="rgb_array")
    assert env.render() is None
    env.reset(SEEDS[:2])
    picture = env.render()
    assert picture is not None
    assert (picture.dtype, picture.shape[-1]) == (np.uint8, 3)
    assert picture.std() > 1
    silent = make_envpool_simulators("CartPole-v1", 2)
    silent.reset(SEEDS[:2])
    assert silent.render() is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Cartpole-v1", {}, ("EnvPool", "'Cartpole-v1'", "'CartPole-v1'")),
        ("Pong-v5", {"reward_clp": True}, ("envpool/Pong-v5", "'reward_clp'", "'reward_clip'")),
        ("Pong-v5", {"metrics": ["live"]}, ("envpool/Pong-v5", "'live'", "'lives'")),
        ("CartPole-v1", {"max_episode_steps": 0}, ("max_episode_steps", "got 0")),
        ("CartPole-v1", {"seed": 3}, ("envpool/CartPole-v1", "'seed'")),
        ("Go9x9-v1", {}, ("Go9x9-v1", "2 players")),
        ("BinPack-v2", {}, ("observations of BinPack-v2", "'items'")),
        ("VizdoomCustom-v1", {}, ("EnvPool", "VizdoomCustom-v1")),
    ],
)
def test_errors_in_words(name: str, options: dict, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        make_envpool_simulators(name, 2, **options)


def test_calls_before_reset_are_refused() -> None:
    env = make_envpool_simulators("CartPole-v1", 2)
    with raises_naming(HostEnvError, "CartPole-v1", "step before", "call reset"):
        env.step(np.zeros(2, np.int32))
    with raises_naming(HostEnvError, "CartPole-v1", "partial_reset before", "call reset"):
        env.partial_reset(np.array([True, False]), np.zeros(2, np.uint64))


def test_converts_arrays_of_jax_too() -> None:
    task = EnvPoolTask("Pong-v5")
    frames = np.arange(2 * 4 * 84 * 84, dtype=np.int64).reshape(2, 4, 84, 84).astype(np.uint8)
    assert_same(jax.jit(task.observed)(frames), task.observed(frames))


def test_import_of_the_adapter_does_not_import_envpool() -> None:
    code = "import sys, evorl.envs.envpool; print('envpool' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("env", [{"name": "envpool/Pong-v5"}, {"library": "envpool", "name": "Pong-v5"}])
def test_evaluations_play_whole_games(env: dict[str, str]) -> None:
    spec = RunSpec(workflow={"env": {**env, "episodic_life": True, "frame_skip": 2}})
    assert seeded_env(spec) == {**env, "episodic_life": True, "frame_skip": 2}
    assert seeded_env(spec, evaluates=True) == {**env, "frame_skip": 2}
