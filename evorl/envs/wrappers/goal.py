"""Wrapper that adds goals to an environment, or manages the goals that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import Env, EnvState
from evorl.envs.goals.task import GoalTask, RewardFn, SuccessFn, is_goal_space, with_desired_goal
from evorl.envs.space import Box, DictSpace
from evorl.envs.wrappers.wrapper import Wrapper, has_layer
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key, PyTreeDict


class GoalWrapper(Wrapper):
    """Adds goals to an environment, or manages the goals of an environment that already observes goals.

    At the start of an episode, the wrapper draws a goal with a separate key, or uses the goal that the environment
    observes. It stores the goal in the state as ``_internal.desired_goal``, where a goal setter may replace it, and
    replaces the reward by ``reward_fn``. ``info.is_success`` is true in steps that reach the goal, even if the episode
    continues. Apply the wrapper inside an ``EpisodeWrapper``.

    Args:
        env: a single environment.
        goal_space: space of the goals, a ``Box`` of vectors. It must be bounded unless the environment observes goals.
        achieved_goal_fn: function that returns the achieved goal, given the ``EnvState`` of ``env`` after a reset or a
            step; ``None`` if observations have the entry ``achieved_goal``.
        reward_fn: see ``GoalTask``.
        success_fn: see ``GoalTask``.
        terminate_on_success: true if an episode ends when its goal is reached.
        own_goals: space from which goals are drawn, by default ``goal_space``; not used if the environment observes
            goals. Goal setters and hindsight replay may use any goal of ``goal_space``.

    Raises:
        ValueError: goals are not vectors or cannot be drawn; the achieved goal is missing or has the wrong shape; or
            ``env`` already contains a ``GoalWrapper``.
    """

    def __init__(
        self,
        env: Env,
        goal_space: Box,
        achieved_goal_fn: Callable[[EnvState], jax.Array] | None,
        reward_fn: RewardFn,
        success_fn: SuccessFn,
        *,
        terminate_on_success: bool = False,
        own_goals: Box | None = None,
    ) -> None:
        super().__init__(env)
        if has_layer(env, GoalWrapper):
            raise ValueError("The environment already contains a GoalWrapper: remove one of the two.")
        self._observes_goals = is_goal_space(env.obs_space)
        if not isinstance(goal_space, Box) or len(goal_space.shape) != 1:
            raise ValueError(f"goal_space must be a Box of vectors, as in Box(-1.0, 1.0, (2,)); got {goal_space!r}.")
        if not self._observes_goals and not goal_space.is_bounded:
            raise ValueError(f"goals may be drawn from goal_space, so it must be bounded; got {goal_space!r}.")
        if achieved_goal_fn is None and not self._observes_goals:
            raise ValueError(
                f"observations of {type(env.unwrapped).__name__} have no achieved_goal: pass achieved_goal_fn, which "
                "computes it from the state."
            )
        self.achieved_goal_fn = achieved_goal_fn
        self.own_goals = goal_space if own_goals is None else own_goals
        self.task = GoalTask(goal_space, reward_fn, success_fn, terminate_on_success)
        self._check_achieved()
        inner = env.obs_space
        observation = inner.spaces["observation"] if isinstance(inner, DictSpace) and self._observes_goals else inner
        achieved = Box(-jnp.inf, jnp.inf, goal_space.shape, goal_space.dtype)  # may be outside the goals' bounds
        self._space = DictSpace({"observation": observation, "achieved_goal": achieved, "desired_goal": goal_space})

    @property
    def obs_space(self) -> DictSpace:
        """A dict space with the entries ``observation``, ``achieved_goal`` and ``desired_goal``."""
        return self._space

    @property
    def goal_task(self) -> GoalTask:
        return self.task

    def reset(self, key: Key) -> EnvState:
        if self._observes_goals:
            state = self.env.reset(key)
            return self._observed(state, state.obs.desired_goal, jnp.zeros((), jnp.bool_))
        env_key, goal_key = jax.random.split(as_typed_key(key))
        return self._observed(self.env.reset(env_key), self.own_goals.sample(goal_key), jnp.zeros((), jnp.bool_))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        goal = env_state._internal.desired_goal
        state = self.env.step(env_state, action)
        outcome = self.task.outcome(self._achieved(state), goal, action, self._observation(state))
        termination = state.info.termination | outcome.termination | (state.done & ~state.info.truncation)
        truncation = state.info.truncation & ~termination
        info = state.info.replace(termination=termination, truncation=truncation)
        state = state.replace(reward=outcome.reward, done=termination | truncation, info=info)
        return self._observed(state, goal, outcome.is_success)

    def _observed(self, state: EnvState, goal: jax.Array, is_success: jax.Array) -> EnvState:
        goal = goal.astype(self.task.goal_space.dtype)
        obs = PyTreeDict(
            observation=self._observation(state),
            achieved_goal=self._achieved(state).astype(goal.dtype),
            desired_goal=goal,
        )
        info, internal = state.info | {"is_success": is_success}, state._internal | {"desired_goal": goal}
        return state.replace(obs=obs, info=info, _internal=internal)

    def _observation(self, state: EnvState) -> Any:
        return state.obs.observation if self._observes_goals else state.obs

    def _achieved(self, state: EnvState) -> jax.Array:
        return state.obs.achieved_goal if self.achieved_goal_fn is None else self.achieved_goal_fn(state)

    def _check_achieved(self) -> None:
        if self.achieved_goal_fn is None:
            achieved = self.env.obs_space.spec["achieved_goal"]
        else:
            achieved = jax.eval_shape(lambda key: self._achieved(self.env.reset(key)), jax.random.key(0))
        if achieved.shape != self.task.goal_space.shape:
            raise ValueError(
                f"goals have the shape {self.task.goal_space.shape}, but achieved goals have {achieved.shape}: change "
                "goal_space or achieved_goal_fn, so that the shapes are equal."
            )


def wrap_goals(env: Env, task: GoalTask) -> GoalWrapper:
    """Wrap ``env``, an environment that observes goals, with the reward and success functions of ``task``."""
    functions, ends = (task.reward_fn, task.success_fn), task.terminate_on_success
    return GoalWrapper(env, task.goal_space, None, *functions, terminate_on_success=ends)


def with_goal(state: EnvState, goal: jax.Array) -> EnvState:
    """Return a state of a ``GoalWrapper`` with ``goal`` as the desired goal, in the observation and for later steps."""
    internal = state._internal.replace(desired_goal=goal)
    return state.replace(obs=with_desired_goal(state.obs, goal), _internal=internal)
