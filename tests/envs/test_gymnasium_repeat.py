"""Action repeat of Gymnasium's environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import Box
from evorl.envs.factory import create_env
from evorl.envs.goals.sparse import Within
from evorl.envs.goals.task import GoalTask
from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.envs.gymnasium_repeat import with_repeated_actions
from evorl.envs.wrapped_row import WrappedRow
from tests.support.errors import raises_naming

CAR, LIMIT = "MountainCarContinuous-v0", 999


def test_an_action_is_repeated_and_the_rewards_are_summed() -> None:
    once, held = gymnasium.make(CAR), with_repeated_actions(gymnasium.make(CAR), 3)
    once.reset(seed=1)
    held.reset(seed=1)
    action = np.array([0.5], np.float32)
    steps = [once.step(action) for _ in range(3)]
    obs, reward, termination, truncation, _ = held.step(action)
    np.testing.assert_array_equal(obs, steps[-1][0])
    assert reward == pytest.approx(sum(float(step[1]) for step in steps))
    assert (termination, truncation) == (False, False)
    env = gymnasium.make(CAR)
    assert with_repeated_actions(env, 1) is env


class Doubling(gymnasium.Env):
    """Doubles its action in place, and returns rewards of any type."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, reward: Any) -> None:
        self.reward, self.actions = reward, []

    def reset(self, **_: Any) -> tuple[Any, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict]:
        action *= 2.0
        self.actions.append(action.item())
        return np.zeros(1, np.float32), self.reward, False, False, {}


@pytest.mark.parametrize(
    ("reward", "total"),
    [(np.array(1.0), 4.0), (np.bool_(True), 4.0), (np.uint8(200), 800.0), (np.float32(0.5), 2.0), (3, 12.0)],
)
def test_each_repeat_has_the_same_action_and_its_reward_is_a_number(reward: Any, total: float) -> None:
    env = Doubling(reward)
    action = np.array([0.25], np.float32)
    assert with_repeated_actions(env, 4).step(action)[1] == total
    assert env.actions == [0.5] * 4
    assert action == 0.25


def test_an_action_ends_with_the_episode() -> None:
    env = with_repeated_actions(gymnasium.make("CartPole-v1", max_episode_steps=5), 3)
    env.reset(seed=0)
    assert [env.step(1)[1:4], env.step(0)[1:4]] == [(3.0, False, False), (2.0, False, True)]


@pytest.mark.parametrize("host", ["loop", "callback"])
def test_time_limit_and_steps_are_those_of_a_jax_environment(host: str) -> None:
    options = {"action_repeat": 3, "max_episode_steps": 7, "parallel": 2}
    of_host = create_env({"library": "gymnasium", "name": "CartPole-v1", "host": host, **options})
    in_jax = create_env({"library": "gymnax", "name": "CartPole-v1", **options})
    assert of_host.max_episode_steps == in_jax.max_episode_steps == 3
    assert WrappedRow(of_host).action_repeat == WrappedRow(in_jax).action_repeat == 3
    of_host.close()


def make_endless() -> gymnasium.Env:
    return Doubling(1.0)


def test_the_time_limit_of_a_factory_counts_environment_steps() -> None:
    """The last action before the limit is repeated fewer times."""
    options = {"max_episode_steps": 10, "action_repeat": 4, "parallel": 1}
    env = create_env({"factory": f"{__name__}:make_endless", **options})
    state = env.reset(jax.random.key(0))
    rewards = []
    for _ in range(3):
        state = env.step(state, np.zeros((1, 1), np.float32))
        rewards.append(float(state.reward[0]))
    assert rewards == [4.0, 4.0, 2.0]
    assert bool(state.info.truncation[0])
    env.close()


def make_short() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=100)


@pytest.mark.parametrize("action_repeat", [1, 2])
def test_a_limit_beyond_that_of_the_simulators_is_refused(action_repeat: int) -> None:
    options = {"max_episode_steps": 200, "action_repeat": action_repeat, "parallel": 1}
    with raises_naming(ValueError, "200", "100"):
        create_env({"factory": f"{__name__}:make_short", **options})


def test_an_episode_of_held_actions_counts_actions() -> None:
    env = create_env(
        {"library": "gymnasium", "name": "CartPole-v1", "host": "callback", "action_repeat": 2, "parallel": 1}
    )
    state = env.reset(jax.random.key(0))
    state = jax.jit(env.step)(state, np.zeros(1, np.int32))
    assert float(state.reward[0]) == 2.0
    assert int(state.info.steps[0]) == 1
    env.close()


def test_simulators_without_action_repeat_are_refused() -> None:
    with raises_naming(ValueError, "action_repeat=2", "JAX or Gymnasium", "inside the simulator"):
        create_env({"library": "host", "name": "hopper", "action_repeat": 2, "parallel": 1})
    with raises_naming(ValueError, "action_repeat", "1.5"):
        create_env({"library": "gymnasium", "name": CAR, "action_repeat": 1.5, "parallel": 1})
    assert make_gymnasium_simulators(CAR, 1, action_repeat=4).action_repeat == 4


class Distant(gymnasium.Env):
    """A point that moves by 1 per step towards its goal; the reward is the negative distance."""

    goal_task = GoalTask(
        Box(0.0, 9.0, (1,)), lambda achieved, desired, *_: -jnp.abs(achieved - desired)[0], Within(0.1)
    )
    observation_space = gymnasium.spaces.Dict(
        dict.fromkeys(("observation", "achieved_goal", "desired_goal"), gymnasium.spaces.Box(0.0, 9.0, (1,)))
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict]:
        self.position = np.zeros(1, np.float32)
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.position = self.position + np.float32(1)
        return self._observed(), float(self.position[0] - 5.0), False, False, {}

    def _observed(self) -> dict:
        goal = np.full(1, 5, np.float32)
        return {"observation": self.position, "achieved_goal": self.position, "desired_goal": goal}


@pytest.mark.parametrize("action_repeat", [1, 2])
def test_rewards_under_a_goal_are_summed_too(action_repeat: int) -> None:
    env = create_env({"factory": f"{__name__}:Distant", "action_repeat": action_repeat, "parallel": 1})
    state, rewards = env.reset(jax.random.key(0)), []
    for _ in range(4 // action_repeat):
        state = env.step(state, np.zeros(1, np.int32))
        rewards.append(float(state.reward[0]))
    assert sum(rewards) == float(state.info.episode_return[0]) == -10.0
    assert len(rewards) == 4 // action_repeat
    env.close()
