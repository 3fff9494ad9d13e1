"""Rewards of goals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from evorl.agents.observations import joined_with_goal, select_observation
from evorl.envs import Box, DictSpace, create_env
from evorl.envs.goals.task import GoalTask, is_goal_space, with_desired_goal
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming

SPACE = Box(-1.0, 1.0, (2,))


def _distance(achieved: jax.Array, desired: jax.Array, action: jax.Array, obs: jax.Array) -> jax.Array:
    return -jnp.abs(achieved - desired).sum()


def _is_near(achieved: jax.Array, desired: jax.Array) -> jax.Array:
    return jnp.abs(achieved - desired).max() < 0.5


@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize(("goal", "reward", "is_success"), [(0.25, -0.5, True), (1.0, -2.0, False)])
def test_an_outcome_is_told_of_any_goal(terminates: bool, goal: float, reward: float, is_success: bool) -> None:
    task = GoalTask(SPACE, _distance, _is_near, terminates)
    outcome = task.outcome(jnp.zeros(2), jnp.full(2, goal), jnp.zeros(1), jnp.zeros(3))
    assert (outcome.reward, outcome.is_success) == (reward, is_success)
    assert outcome.termination == (terminates and is_success)


def test_the_same_goals_may_be_paid_otherwise() -> None:
    task = GoalTask(SPACE, _distance, _is_near).with_reward(lambda *_: jnp.asarray(7))
    outcome = task.outcome(jnp.zeros(2), jnp.zeros(2), jnp.zeros(1), jnp.zeros(3))
    assert (outcome.reward, outcome.reward.dtype, outcome.is_success) == (7.0, jnp.float32, True)


def test_a_goal_space_has_exactly_three_entries() -> None:
    spaces = {"observation": SPACE, "achieved_goal": SPACE, "desired_goal": SPACE}
    assert is_goal_space(DictSpace(spaces))
    assert not is_goal_space(DictSpace({**spaces, "picture": SPACE}))
    assert not is_goal_space(DictSpace({"observation": SPACE, "desired_goal": SPACE}))
    assert not is_goal_space(SPACE)
    assert create_env("gymnax/CartPole-v1").goal_task is None


def test_networks_read_the_observation_and_the_desired_goal() -> None:
    obs = PyTreeDict(
        observation=jnp.array([[1, 2]]), achieved_goal=jnp.array([[9.0]]), desired_goal=jnp.array([[3]], jnp.int8)
    )
    assert select_observation(obs, None).tolist() == [[1.0, 2.0, 3.0]]
    assert select_observation(with_desired_goal(obs, jnp.array([[5]])), None).tolist() == [[1.0, 2.0, 5.0]]
    assert select_observation(obs, "achieved_goal").tolist() == [[9.0]]
    with raises_naming(ValueError, "vectors", "(1, 8, 8, 3)"):
        joined_with_goal(obs.replace(observation=jnp.zeros((1, 8, 8, 3))))
