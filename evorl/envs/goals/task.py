"""Goals: how they stand in an observation, and the pure functions that say what it is worth to reach one.

A goal environment observes a dict of ``observation``, ``achieved_goal`` and ``desired_goal``. What a step pays, and
whether it succeeds, is a function of the goal that was achieved by it and of the one that was desired. So it can be
told for any other goal too, which is what hindsight lives on (Andrychowicz et al. 2017).
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
    """What a step comes to under a goal.

    Attributes:
        reward: float32.
        is_success: whether the achieved goal is the desired one, bool.
        termination: whether the episode ends by that, bool.
    """

    reward: jax.Array
    is_success: jax.Array
    termination: jax.Array


@dataclasses.dataclass(frozen=True)
class GoalTask:
    """What an environment asks of its goals. Functions are of one step, without leading axes, and pure.

    Attributes:
        goal_space: where goals lie.
        reward_fn: (achieved goal after the step, desired goal, action, observation after the step) -> reward.
        success_fn: (achieved goal, desired goal) -> whether that is near enough, bool.
        terminate_on_success: whether an episode ends when its goal is reached.
    """

    goal_space: Box
    reward_fn: RewardFn
    success_fn: SuccessFn
    terminate_on_success: bool = False

    def with_reward(self, reward_fn: RewardFn) -> GoalTask:
        """The same goals, paid otherwise."""
        return dataclasses.replace(self, reward_fn=reward_fn)

    def outcome(
        self, achieved_goal: jax.Array, desired_goal: jax.Array, action: Action, observation: Observation
    ) -> GoalOutcome:
        """What a step that achieved ``achieved_goal`` is worth where ``desired_goal`` is asked for."""
        is_success = jnp.asarray(self.success_fn(achieved_goal, desired_goal), jnp.bool_)
        reward = self.reward_fn(achieved_goal, desired_goal, action, observation)
        return GoalOutcome(
            reward=jnp.asarray(reward, jnp.float32),
            is_success=is_success,
            termination=is_success if self.terminate_on_success else jnp.zeros_like(is_success),
        )


def is_goal_space(space: Space) -> bool:
    """Whether observations of this space have goals: a dict of exactly the three entries."""
    return isinstance(space, DictSpace) and set(space.spaces) == GOAL_KEYS


def with_desired_goal(obs: PyTreeDict, goal: jax.Array) -> PyTreeDict:
    """The observation under another goal."""
    return obs.replace(desired_goal=goal)
