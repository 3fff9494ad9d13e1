"""Scaled and sparse rewards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evorl.envs import AutoresetMode, Env
from evorl.envs.wrappers import (
    VECTOR_ENVS,
    EpisodeWrapper,
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardTransformWrapper,
    SparseRewardWrapper,
)
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv


def rewards(env: Env, mode: AutoresetMode, num_steps: int) -> list[float]:
    vector = VECTOR_ENVS[mode](env, 1)

    def step(state, _):
        state = vector.step(state, jnp.zeros(1, jnp.int32))
        return state, state.reward[0]

    return jax.lax.scan(step, vector.reset(jax.random.key(0)), length=num_steps)[1].tolist()


def test_scale() -> None:
    env = RewardScaleWrapper(ProbeEnv("value_is_reward"), -0.5)
    assert rewards(env, AutoresetMode.NORMAL, 2) == [-0.5, -0.5]


@pytest.mark.parametrize("scale", [3.0, -3.0, 0.25])
def test_clip(scale: float) -> None:
    env = RewardClipWrapper(RewardScaleWrapper(ProbeEnv("value_is_reward"), scale), 1.0)
    assert rewards(env, AutoresetMode.NORMAL, 2) == [min(1.0, max(-1.0, scale))] * 2


@pytest.mark.parametrize(
    ("name", "paid"),
    [("tanh", 0.995055), ("arctan", 1.249046), ("sign", 1.0), ("sqrt", 1.732051), ("log", 1.386294)],
)
def test_transforms_squeeze_rewards_and_keep_their_sign(name: str, paid: float) -> None:
    for sign in (1.0, -1.0):
        env = RewardTransformWrapper(RewardScaleWrapper(ProbeEnv("value_is_reward"), 3.0 * sign), name)
        assert rewards(env, AutoresetMode.NORMAL, 1) == pytest.approx([sign * paid], rel=1e-5)


def test_no_such_transform() -> None:
    with raises_naming(ValueError, "reward_transform", "'tahn'", "'tanh'"):
        RewardTransformWrapper(ProbeEnv("value_is_reward"), "tahn")


@pytest.mark.parametrize("mode", [AutoresetMode.NORMAL, AutoresetMode.FAST])
def test_sparse_pays_every_interval_and_at_the_end(mode: AutoresetMode) -> None:
    env = SparseRewardWrapper(EpisodeWrapper(ProbeEnv("time_limit"), 5), 3)
    assert rewards(env, mode, 10) == [0, 0, 3, 0, 2, 0, 0, 3, 0, 2]


def test_sparse_pays_at_termination() -> None:
    env = SparseRewardWrapper(EpisodeWrapper(ProbeEnv("termination")), 100)
    assert rewards(env, AutoresetMode.DISABLED, 10) == [0] * 7 + [8, 0, 0]


def test_interval_is_checked() -> None:
    with raises_naming(ValueError, "interval", "got 0"):
        SparseRewardWrapper(ProbeEnv("time_limit"), 0)
