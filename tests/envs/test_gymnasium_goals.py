"""Goals of Gymnasium's environments: reward functions in JAX equal the rewards of the environments."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from evorl.envs import Box, create_env
from evorl.envs.goals.sparse import MinusOneUntil, Within
from evorl.envs.goals.task import GoalTask
from evorl.execution.collector import iterate
from tests.support.errors import raises_naming
from tests.support.small_workflows import small

REACH, MAZE = "FetchReach-v4", "PointMaze_UMaze-v3"
NUM_ENVS, LENGTH = 6, 60  # mazes, some without a wall in between


@pytest.fixture(scope="module", params=[REACH, "FetchReachDense-v4", MAZE, "PointMaze_UMazeDense-v3"])
def env(request: pytest.FixtureRequest) -> Any:
    env = create_env(f"gymnasium/{request.param}", parallel=NUM_ENVS, max_episode_steps=LENGTH)
    yield env
    env.close()


def test_what_is_told_is_what_the_environment_pays(env: Any) -> None:
    """The reward function equals the environment's rewards during episodes that reach their goal."""
    answers: list[dict[str, Any]] = []
    original = env.simulators.step
    env.simulators.step = lambda arguments: answers.append(original(arguments)) or answers[-1]
    state = env.reset(jax.random.key(0))
    assert set(state.obs) == {"observation", "achieved_goal", "desired_goal"}
    successes, goals = 0, []
    for step in range(LENGTH + 5):
        goals.append(np.asarray(state.obs.desired_goal))
        towards = 10 * np.asarray(state.obs.desired_goal - state.obs.achieved_goal)
        actions = np.zeros((NUM_ENVS, *env.action_space.shape), np.float32)
        actions[:, : towards.shape[1]] = np.clip(towards, -1, 1)
        state = env.step(state, actions)
        np.testing.assert_allclose(state.reward, answers[-1]["reward"], rtol=1e-4, atol=1e-5)
        assert np.asarray(state.info.truncation).all() == (step == LENGTH - 1)
        successes += int(np.asarray(state.info.is_success).sum())
    env.simulators.step = original
    assert successes
    assert all((goal == goals[0]).all() for goal in goals[:LENGTH])  # one goal per episode
    assert not (goals[LENGTH] == goals[0]).all(axis=1).any()


def test_hindsight_learns_from_a_simulator_by_the_same_programs() -> None:
    """Hindsight with the host loop and with callbacks in the compiled program gives equal numbers."""
    states = []
    for host in ("loop", "callback"):
        workflow = small(
            "td3",
            {"library": "gymnasium", "name": REACH, "host": host, "max_episode_steps": 5},
            num_envs=2,
            rollout_length=4,
            learning_starts=0,
            batch_size=32,
            replay={"hindsight": "future"},
        )
        # Observation and goal.
        assert jax.eval_shape(workflow.agent.policy_network.init, jax.random.key(0), np.zeros((1, 13)))
        _, state = iterate(workflow, workflow.init(0), 3)
        states.append(state)
        replay = state.replay_state.data
        paid = np.asarray(replay.rewards[:12])
        assert ((paid == -1.0) | (paid == 0.0)).all()
        workflow.close()
    for one, other in zip(*(jax.tree.leaves(state.agent_state.params) for state in states), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"continuing_task": False}, ("continuing_task=true",)),
        ({"reset_target": True}, ("reset_target=true",)),
        (
            {"goal_task": f"{__name__}:of_other_goals"},
            ("shape (2,)", "GoalTask", "(3,)"),
        ),
        ({"goal_task": f"{__name__}:paid_otherwise"}, ("PointMaze_UMaze-v3", "reward", "GoalTask")),
        ({"goal_task": f"{__name__}:no_task"}, ("goal_task", "GoalTask", "got int")),
        ({"goal_setter": "uniform"}, ("env.goal_setter", "JAX environment")),
    ],
)
def test_refusals_are_in_words(options: dict[str, Any], message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        create_env(f"gymnasium/{MAZE}", **options)


@pytest.mark.parametrize("read", ["action", "observation", "both"])
def test_rewards_may_depend_on_the_action_and_the_observation(read: str) -> None:
    """They cannot be compared with the environment's function of the goals, but hindsight can compute them."""
    env = create_env(f"gymnasium/{MAZE}", goal_task=f"{__name__}:paid_by_{read}")
    assert env.goal_task is not None
    state = env.reset(jax.random.key(0))
    action = np.ones((1, *env.action_space.shape), np.float32)
    stepped = env.step(state, action)
    expected = {"action": 2.0, "observation": np.asarray(stepped.obs.observation)[0, 0]}
    np.testing.assert_allclose(stepped.reward, [expected.get(read, sum(expected.values()))], rtol=1e-5)
    env.close()


def _paid(reward_fn: Any) -> GoalTask:
    return GoalTask(Box(-1.0, 1.0, (2,)), reward_fn, Within(0.45))


def paid_by_action(env: gymnasium.Env) -> GoalTask:
    return _paid(lambda achieved, desired, action, observation: action.sum())


def paid_by_observation(env: gymnasium.Env) -> GoalTask:
    return _paid(lambda achieved, desired, action, observation: observation[0])


def paid_by_both(env: gymnasium.Env) -> GoalTask:
    return _paid(lambda achieved, desired, action, observation: action.sum() + observation[0])


def of_other_goals(env: gymnasium.Env) -> GoalTask:
    return GoalTask(Box(-1.0, 1.0, (3,)), MinusOneUntil(Within(0.5)), Within(0.5))


def paid_otherwise(env: gymnasium.Env) -> GoalTask:
    return GoalTask(Box(-1.0, 1.0, (2,)), MinusOneUntil(Within(0.5)), Within(0.5))


def no_task(env: gymnasium.Env) -> int:
    return 3


def test_goals_are_told_of_environments_that_have_them() -> None:
    with raises_naming(ValueError, "goal_task", "no goal"):
        create_env("gymnasium/CartPole-v1", goal_task=f"{__name__}:no_task")


def test_hindsight_needs_to_know_what_goals_are_worth() -> None:
    """Hindsight is rejected for goals without a reward function, such as the rotations of a hand."""
    env = create_env("gymnasium/HandManipulateBlockRotateZ-v1")
    assert env.goal_task is None
    env.close()
    with raises_naming(ValueError, "replay.hindsight", "reward", "goal"):
        small("td3", "gymnasium/HandManipulateBlockRotateZ-v1", replay={"hindsight": "future"})


def test_a_missing_package_is_told_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with raises_naming(ImportError, "pip install 'gymnasium-robotics>=1.4'"):
        create_env(f"gymnasium/{REACH}")
