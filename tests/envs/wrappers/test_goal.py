"""Goals for environments without goals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box, create_env
from evorl.envs.env import EnvState
from evorl.envs.goals.bit_flip import make_bit_flip
from evorl.envs.goals.point_maze import make_point_maze
from evorl.envs.goals.setting import required_goal_task
from evorl.envs.goals.task import is_goal_space
from evorl.envs.gymnax import create_wrapped_gymnax_env
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import (
    ActionConversionWrapper,
    EpisodeWrapper,
    RewardClipWrapper,
    RewardScaleWrapper,
    VmapAutoResetWrapper,
)
from evorl.envs.wrappers.goal import GoalWrapper, with_goal
from tests.envs.wrappers.test_action import Echo
from tests.envs.wrappers.test_clock import Flagged
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv

POSITIONS = Box(-1.2, 0.6, (1,))


def _position(env_state: EnvState) -> jax.Array:
    return env_state.obs[:1]


def _is_near(achieved: jax.Array, desired: jax.Array) -> jax.Array:
    return jnp.abs(achieved - desired)[0] < 0.1


def _all_it_gets(achieved: jax.Array, desired: jax.Array, action: jax.Array, obs: jax.Array) -> jax.Array:
    """Return a number whose digits encode the four arguments."""
    return achieved[0] + 10.0 * desired[0] + 100.0 * action[0] + 1000.0 * obs[1]


def _mountain_car(terminate_on_success: bool = False) -> GoalWrapper:
    inner = create_wrapped_gymnax_env("MountainCarContinuous-v0").unwrapped
    return GoalWrapper(inner, POSITIONS, _position, _all_it_gets, _is_near, terminate_on_success=terminate_on_success)


def _played(env: Any, state: EnvState, num_steps: int) -> Any:
    keys = jax.random.split(jax.random.key(1), num_steps)

    def step(state: EnvState, key: jax.Array) -> tuple[EnvState, Any]:
        actions = jax.vmap(env.action_space.sample)(jax.random.split(key, env.num_envs))
        after = env.step(state, actions)
        return after, (state.obs, actions, after.info.next_obs, after.reward, after.done, after.info)

    return jax.tree.map(np.asarray, jax.jit(lambda s: jax.lax.scan(step, s, keys)[1])(state))


def test_an_environment_with_goals_may_only_set_done() -> None:
    inner = Flagged(True, False, False)
    env = GoalWrapper(inner, Box(-1.0, 1.0, (1,)), lambda _: jnp.zeros(1), lambda *_: jnp.zeros(()), _is_near)
    for limit in (None, 20):
        wrapped = wrap_env(env, max_episode_steps=limit)
        state = wrapped.step(wrapped.reset(jax.random.key(0)), wrapped.action_space.zeros()[None])
        assert (bool(state.done[0]), bool(state.info.termination[0])) == (True, True)


def test_an_environment_is_given_goals() -> None:
    env = wrap_env(_mountain_car(), parallel=3, max_episode_steps=20)
    assert is_goal_space(env.obs_space)
    obs, actions, next_obs, reward, done, info = _played(env, env.reset(jax.random.key(0)), 60)
    np.testing.assert_array_equal(next_obs.achieved_goal, next_obs.observation[..., :1])
    # The goal is constant within an episode.
    np.testing.assert_array_equal(obs.desired_goal, next_obs.desired_goal)
    goals = obs.desired_goal[..., 0]
    assert (np.diff(goals, axis=0)[~done[:-1]] == 0).all()
    assert (np.diff(goals, axis=0)[done[:-1]] != 0).all()
    squashed = actions[..., 0]
    expected = next_obs.achieved_goal[..., 0] + 10 * goals + 100 * squashed + 1000 * next_obs.observation[..., 1]
    np.testing.assert_allclose(reward, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(info.is_success, np.abs(next_obs.achieved_goal[..., 0] - goals) < 0.1)
    assert info.is_success.any()
    assert not done[info.is_success].all()


def test_success_ends_an_episode_if_that_is_asked_for() -> None:
    env = wrap_env(_mountain_car(terminate_on_success=True), parallel=8, max_episode_steps=20)
    *_, done, info = _played(env, env.reset(jax.random.key(0)), 60)
    assert info.is_success.any()
    np.testing.assert_array_equal(info.termination, info.is_success)
    np.testing.assert_array_equal(done, info.termination | info.truncation)
    assert not (info.termination & info.truncation).any()


def test_rows_that_go_on_keep_their_goals() -> None:
    env = wrap_env(_mountain_car(), parallel=3)
    state = env.reset(jax.random.key(0))
    after = env.partial_reset(state, jnp.array([True, False, True]), jax.random.key(1))
    kept = np.asarray(after.obs.desired_goal == state.obs.desired_goal)[:, 0]
    assert kept.tolist() == [False, True, False]


def test_another_goal_can_be_asked_of_a_running_episode() -> None:
    env = _mountain_car()
    state = with_goal(env.reset(jax.random.key(0)), jnp.array([0.25]))
    assert state.obs.desired_goal == 0.25
    assert env.step(state, jnp.zeros(1)).obs.desired_goal == 0.25


class Finding(Echo):
    """Environment with goals: approach the last action."""

    def __init__(self) -> None:
        super().__init__()
        self.obs_space = make_point_maze("open").obs_space

    def reset(self, key: jax.Array) -> EnvState:
        return self._with_goals(super().reset(key))

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        return self._with_goals(super().step(env_state, action))

    def _with_goals(self, state: EnvState) -> EnvState:
        return state.replace(
            obs=jax.tree.map(lambda x: x + 0.5, self.obs_space.zeros()).replace(achieved_goal=state.obs)
        )


def test_goals_that_an_environment_has_are_taken_as_they_are() -> None:
    env = GoalWrapper(Finding(), Box(-1.0, 1.0, (2,)), None, lambda a, d, u, o: -jnp.sum(jnp.abs(a - d)), _is_near)
    state = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(state.obs.desired_goal, [0.5, 0.5])
    state = env.step(with_goal(state, jnp.array([1.0, 2.0])), jnp.array([1.0, 3.0]))
    np.testing.assert_array_equal(state.obs.desired_goal, [1.0, 2.0])
    np.testing.assert_array_equal(state.obs.observation, [0.5, 0.5])
    assert state.reward == -1.0
    assert state.info.is_success


@pytest.mark.parametrize("wrapped", [lambda env: RewardScaleWrapper(env, 0.5), lambda env: RewardClipWrapper(env, 7.0)])
def test_what_a_goal_is_worth_goes_through_the_wrappers(wrapped: Any) -> None:
    """A step's reward equals the task's outcome, with any wrappers."""
    env = VmapAutoResetWrapper(wrapped(EpisodeWrapper(ActionConversionWrapper(_mountain_car()), 20)), 4)
    task = required_goal_task(env, "replay.hindsight")
    obs, actions, next_obs, reward, *_ = _played(env, env.reset(jax.random.key(0)), 30)
    outcome = jax.vmap(jax.vmap(task.outcome))(next_obs.achieved_goal, obs.desired_goal, actions, next_obs.observation)
    np.testing.assert_allclose(reward, outcome.reward, rtol=1e-5, atol=1e-5)
    assert len(np.unique(reward)) > 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action_repeat": 2}, ("env.action_repeat",)),
        ({"sparse_reward_interval": 5}, ("env.sparse_reward_interval",)),
        ({"flatten_obs": True}, ("env.flatten_obs",)),
        ({"history": 2}, ("env.history",)),
    ],
)
def test_a_wrapper_that_hides_the_goals_is_named(options: dict, words: tuple[str, ...]) -> None:
    env = create_env("goal/bit_flip", **options)
    with raises_naming(ValueError, "replay.hindsight", "reward", *words):
        required_goal_task(env, "replay.hindsight")


def test_an_environment_without_goals_is_told() -> None:
    with raises_naming(ValueError, "replay.hindsight", "goals", "keys observation, achieved_goal and desired_goal"):
        required_goal_task(create_env("gymnax/CartPole-v1"), "replay.hindsight")
    with raises_naming(ValueError, "replay.hindsight", "rewards for other goals"):
        required_goal_task(Finding(), "replay.hindsight")


@pytest.mark.parametrize(
    ("space", "achieved_goal_fn", "words"),
    [
        (Box(-1.0, 1.0, (2,)), _position, ("goals", "shape (2,)", "achieved_goal_fn", "(1,)")),
        (Box(-1.0, 1.0), _position, ("goal_space", "Box of vectors")),
        (Box(-np.inf, 1.0, (1,)), _position, ("goal_space", "bounded")),
        (POSITIONS, None, ("achieved_goal_fn",)),
    ],
)
def test_goals_that_cannot_be_are_told(space: Box, achieved_goal_fn: Any, words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        GoalWrapper(ProbeEnv("value_is_reward"), space, achieved_goal_fn, _all_it_gets, _is_near)


def test_goals_are_given_once() -> None:
    with raises_naming(ValueError, "already", "GoalWrapper"):
        GoalWrapper(make_bit_flip(3), POSITIONS, _position, _all_it_gets, _is_near)
