"""Goals in observations, and the pure functions that compute the reward and the success of a step under a goal.

Observations of a goal environment are dicts of ``observation``, ``achieved_goal`` and ``desired_goal``. Reward and
success are functions of the step and its desired goal. They can therefore be recomputed for any other desired goal,
as hindsight replay does (Andrychowicz et al. 2017).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from evorl.envs.space import GOAL_KEYS, Box, DictSpace, Space
from evorl.types import Action, Observation, PyTreeData, PyTreeDict

RewardFn = Callable[[jax.Array, jax.Array, Action, Observation], jax.Array]
SuccessFn = Callable[[jax.Array, jax.Array], jax.Array]


class GoalOutcome(PyTreeData):
    """Outcome of a step under a goal.

    Attributes:
        reward: reward of the step, float32.
        is_success: true if the step reached the goal according to ``GoalTask.success_fn``, bool.
        termination: true if the success ends the episode, bool.
    """

    reward: jax.Array
    is_success: jax.Array
    termination: jax.Array


@dataclasses.dataclass(frozen=True)
class GoalTask:
    """Reward and success functions of goals: pure functions of a single step, without leading axes.

    Attributes:
        goal_space: space of the goals.
        reward_fn: (achieved goal after the step, desired goal, action, observation after the step) -> reward, a scalar.
        success_fn: (achieved goal, desired goal) -> true if the desired goal is reached, a scalar bool.
        terminate_on_success: true if an episode ends when its goal is reached.
    """

    goal_space: Box
    reward_fn: RewardFn
    success_fn: SuccessFn
    terminate_on_success: bool = False

    def with_reward(self, reward_fn: RewardFn) -> GoalTask:
        """Return a copy of this task with another reward function."""
        return dataclasses.replace(self, reward_fn=reward_fn)

    def outcome(
        self, achieved_goal: jax.Array, desired_goal: jax.Array, action: Action, observation: Observation
    ) -> GoalOutcome:
        """Return the outcome of a step with this action, achieved goal and next observation, under ``desired_goal``."""
        is_success = jnp.asarray(self.success_fn(achieved_goal, desired_goal), jnp.bool_)
        reward = self.reward_fn(achieved_goal, desired_goal, action, observation)
        return GoalOutcome(
            reward=jnp.asarray(reward, jnp.float32),
            is_success=is_success,
            termination=is_success if self.terminate_on_success else jnp.zeros_like(is_success),
        )


def is_goal_space(space: Space) -> bool:
    """Return True if observations have goals: ``space`` is a dict space with exactly the keys ``GOAL_KEYS``."""
    return isinstance(space, DictSpace) and set(space.spaces) == GOAL_KEYS


def with_desired_goal(obs: PyTreeDict, goal: jax.Array) -> PyTreeDict:
    """Return a copy of the observation ``obs`` with ``goal`` as its entry ``desired_goal``."""
    return obs.replace(desired_goal=goal)
