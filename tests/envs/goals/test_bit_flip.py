"""Bit flipping."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.envs import AutoresetMode, create_env
from evorl.envs.goals.bit_flip import Bits, make_bit_flip
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming


class TestContract(VectorEnvContract):
    """Enough bits that random flips do not find the goal, and no two starts are equal."""

    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return create_env("goal/bit_flip", parallel=parallel, autoreset_mode=autoreset_mode, num_bits=12)


def test_the_bits_that_differ_lead_to_the_goal() -> None:
    env = make_bit_flip(6)
    state = env.reset(jax.random.key(3))
    wrong = np.flatnonzero(np.asarray(state.obs.observation != state.obs.desired_goal))
    assert len(wrong) > 1
    for i, bit in enumerate(wrong):
        state = env.step(state, jnp.asarray(bit))
        is_last = i == len(wrong) - 1
        assert (state.reward, state.info.is_success, state.done) == (is_last - 1.0, is_last, is_last)
    np.testing.assert_array_equal(state.obs.achieved_goal, state.obs.desired_goal)
    state = env.step(state, jnp.asarray(0))
    assert (state.reward, state.info.is_success) == (-1.0, False)


def test_starts_and_goals_are_independent_bits() -> None:
    states = jax.jit(jax.vmap(make_bit_flip(4).reset))(jax.random.split(jax.random.key(0), 4000))
    bits = np.concatenate([states.obs.observation, states.obs.desired_goal], axis=1)
    assert set(np.unique(bits)) == {0, 1}
    assert np.abs(np.corrcoef(bits.T) - np.eye(8)).max() < 0.08
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.05


def test_an_episode_has_as_many_steps_as_there_are_bits() -> None:
    assert create_env("goal/bit_flip", num_bits=9).max_episode_steps == 9
    assert create_env("goal/bit_flip", num_bits=9, max_episode_steps=4).max_episode_steps == 4


def test_bits_without_goals_pay_nothing() -> None:
    env = Bits(2)
    state = env.step(env.reset(jax.random.key(0)), jnp.asarray(1))
    assert (state.reward, state.done) == (0.0, False)


def test_no_bits_are_refused() -> None:
    with raises_naming(ValueError, "num_bits", "got 0"):
        make_bit_flip(0)
