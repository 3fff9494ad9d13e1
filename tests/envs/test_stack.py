"""Composition of wrappers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evorl.envs import AutoresetMode, Box, Discrete, create_wrapped_gymnax_env
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import (
    VECTOR_ENVS,
    ActionConversionWrapper,
    ActionRepeatWrapper,
    EpisodeWrapper,
    FrameStackWrapper,
    ObsFlattenWrapper,
    ObsSelectWrapper,
    RewardScaleWrapper,
    SparseRewardWrapper,
)
from evorl.envs.wrappers.wrapper import has_layer
from tests.envs.wrappers.test_observation import Showing
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv


def test_order_of_layers() -> None:
    env = create_wrapped_gymnax_env(
        "Pendulum-v1",
        action_repeat=2,
        history=3,
        reward_scale=0.1,
        sparse_reward_interval=5,
        flatten_obs=True,
        observed=[2, 0],
    )
    layers = []
    inner = env.env
    while hasattr(inner, "env"):
        layers.append(type(inner))
        inner = inner.env
    assert layers == [
        RewardScaleWrapper,
        SparseRewardWrapper,
        FrameStackWrapper,
        ObsSelectWrapper,
        ObsFlattenWrapper,
        EpisodeWrapper,
        ActionRepeatWrapper,
        ActionConversionWrapper,
    ]
    assert env.obs_space.shape == (6,)
    assert env.max_episode_steps == 100
    assert env.action_space == Box(-1.0, 1.0, (1,))


def test_time_limit_with_action_repeat_is_in_steps_of_the_environment() -> None:
    env = wrap_env(ProbeEnv("time_limit"), max_episode_steps=7, action_repeat=3, autoreset_mode="disabled")
    state = env.reset(jax.random.key(0))
    for _ in range(3):
        assert not state.done
        state = env.step(state, jnp.zeros(1, jnp.int32))
    assert state.info.truncation
    assert env.max_episode_steps == 3


def test_episode_return_is_what_the_environment_paid() -> None:
    env = wrap_env(
        ProbeEnv("time_limit"),
        max_episode_steps=4,
        reward_transform="tanh",
        reward_clip=0.5,
        reward_scale=2.0,
        sparse_reward_interval=2,
    )
    state = env.reset(jax.random.key(0))
    rewards = []
    for _ in range(4):
        state = env.step(state, jnp.zeros(1, jnp.int32))
        rewards.append(float(state.reward[0]))
    assert rewards == [0.0, 2.0, 0.0, 2.0]
    assert state.info.episode_return == 4.0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_mode_has_its_vector_env(mode: AutoresetMode) -> None:
    assert type(wrap_env(ProbeEnv("best_action"), autoreset_mode=mode)) is VECTOR_ENVS[mode]


def test_integers_are_encoded_unless_somebody_says_no() -> None:
    env = Showing(Discrete(3))
    assert wrap_env(env).obs_space == wrap_env(env, flatten_obs=True).obs_space == Box(0.0, 1.0, (3,))
    assert wrap_env(env, flatten_obs=False).obs_space == Discrete(3)
    assert wrap_env(Showing(Box(0, 1, (2, 2)))).obs_space.shape == (2, 2)


def test_unknown_options_are_refused() -> None:
    with raises_naming(ValueError, "option of wrap_env", "'paralel'", "'parallel'"):
        wrap_env(ProbeEnv("best_action"), paralel=3)


def test_bounded_actions_are_squashed_and_others_left() -> None:
    assert not has_layer(wrap_env(ProbeEnv("best_action", continuous=True)).env, ActionConversionWrapper)
    assert not has_layer(wrap_env(ProbeEnv("best_action")).env, ActionConversionWrapper)
