"""Converted and repeated actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, EnvState
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import ActionConversionWrapper, ActionRepeatWrapper, EpisodeWrapper
from tests.envs.wrappers.test_observation import Showing
from tests.support.toy_envs import ToyEnv, toy_state


class Echo(ToyEnv):
    """Observes its last action; ends at the third step; pays 1."""

    obs_space = Box(-np.inf, np.inf, (2,))

    def __init__(self, low: float = 0.0, high: float = 10.0) -> None:
        super().__init__(Box([low, low], [high, 2 * high]))

    def reset(self, key: jax.Array) -> EnvState:
        """Return zeros."""
        return toy_state(jnp.zeros((), jnp.int32), jnp.zeros(2))

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Return the action as observation."""
        t = env_state.env_state + 1
        return toy_state(t, action, 1.0, t >= 3)


def test_the_unit_box_reaches_the_bounds() -> None:
    env = ActionConversionWrapper(Echo())
    assert env.action_space == Box(-1.0, 1.0, (2,))
    state = env.reset(jax.random.key(0))
    for action, expected in ([-1, -1], [0, 0]), ([1, 1], [10, 20]), ([0, 0.5], [5, 15]), ([-3, 3], [0, 20]):
        np.testing.assert_allclose(env.step(state, jnp.asarray(action, jnp.float32)).obs, expected)


def test_a_single_end_is_kept() -> None:
    env = ActionConversionWrapper(Echo(high=np.inf))
    assert env.action_space == Box(-np.inf, np.inf, (2,))
    state = env.step(env.reset(jax.random.key(0)), jnp.asarray([-50.0, 60.0]))
    np.testing.assert_allclose(state.obs, [0.0, 60.0], atol=1e-6)


def test_repeat_sums_rewards_and_stops_at_the_end() -> None:
    env = ActionRepeatWrapper(Echo(), 2)
    step = jax.jit(env.step)
    state = step(env.reset(jax.random.key(0)), jnp.ones(2))
    assert (float(state.reward), bool(state.done), int(state.env_state)) == (2.0, False, 2)
    state = step(state, jnp.ones(2))
    assert (float(state.reward), bool(state.done), int(state.env_state)) == (1.0, True, 3)


def test_limit_counts_decisions() -> None:
    assert ActionRepeatWrapper(EpisodeWrapper(Echo(), 7), 2).max_episode_steps == 4
    assert ActionRepeatWrapper(Echo(), 2).max_episode_steps is None


@pytest.mark.parametrize(("limit", "repeats"), [(10, 3), (9, 3), (1, 3), (7, 4)])
def test_repeated_actions_play_exactly_the_limit(limit: int, repeats: int) -> None:
    env = wrap_env(Showing(Box(-1.0, 1.0, (1,))), max_episode_steps=limit, action_repeat=repeats)
    state, played = env.reset(jax.random.key(0)), 0.0
    for _ in range(-(-limit // repeats)):
        assert not state.done.any()
        state = env.step(state, jnp.zeros(1, jnp.int32))
        played += float(state.reward[0])  # 1 per step
    assert state.done.all()
    assert state.info.truncation.all()
    assert played == limit
