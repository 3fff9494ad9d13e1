"""Goals in observations, and the pure functions that compute their reward and success.

Observations of a goal environment are dicts of ``observation``, ``achieved_goal`` and ``desired_goal``. Reward and
success of a step are functions of its achieved and desired goal. They can therefore be recomputed for any other goal,
which hindsight replay relies on (Andrychowicz et al. 2017).
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
        reward: float32.
        is_success: true if the achieved goal is close enough to the desired one, bool.
        termination: true if this ends the episode, bool.
    """

    reward: jax.Array
    is_success: jax.Array
    termination: jax.Array


@dataclasses.dataclass(frozen=True)
class GoalTask:
    """Reward and success functions of goals, which are pure functions of one step without leading axes.

    Attributes:
        goal_space: space of the goals.
        reward_fn: (achieved goal after the step, desired goal, action, observation after the step) -> reward.
        success_fn: (achieved goal, desired goal) -> true if they are close enough, bool.
        terminate_on_success: true if an episode ends when its goal is reached.
    """

    goal_space: Box
    reward_fn: RewardFn
    success_fn: SuccessFn
    terminate_on_success: bool = False

    def with_reward(self, reward_fn: RewardFn) -> GoalTask:
        """Return the same goals with another reward function."""
        return dataclasses.replace(self, reward_fn=reward_fn)

    def outcome(
        self, achieved_goal: jax.Array, desired_goal: jax.Array, action: Action, observation: Observation
    ) -> GoalOutcome:
        """Return the outcome of a step that achieved ``achieved_goal``, for the goal ``desired_goal``."""
        is_success = jnp.asarray(self.success_fn(achieved_goal, desired_goal), jnp.bool_)
        reward = self.reward_fn(achieved_goal, desired_goal, action, observation)
        return GoalOutcome(
            reward=jnp.asarray(reward, jnp.float32),
            is_success=is_success,
            termination=is_success if self.terminate_on_success else jnp.zeros_like(is_success),
        )


def is_goal_space(space: Space) -> bool:
    """Return True if observations of this space have goals: a dict of exactly the three entries."""
    return isinstance(space, DictSpace) and set(space.spaces) == GOAL_KEYS


def with_desired_goal(obs: PyTreeDict, goal: jax.Array) -> PyTreeDict:
    """Return the observation with another desired goal."""
    return obs.replace(desired_goal=goal)
