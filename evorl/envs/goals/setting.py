"""The interface of goal setters, and their application in vector environments.

A goal setter chooses the goals of an environment; it may also change rewards or end episodes. Its methods are pure
functions of one environment's step and of the setter's memory for that environment. The memory is part of the
environment's state, and is saved, restored and sharded with this state.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import Env, EnvState, EnvWrapper
from evorl.envs.goals.task import GoalTask, is_goal_space, with_desired_goal
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, Observation, PyTreeData, PyTreeDict

# Folded into an environment's key, this number gives the setter's key; smaller numbers give the keys of episodes.
_STREAM = 2**32 - 1


class GoalStep(PyTreeData):
    """A step of one environment, as a setter receives it; the setter may change the last five fields.

    Attributes:
        obs: observation before the step, with the goal of this step.
        action: action of the step.
        next_obs: observation after the step, with the same goal and before any autoreset.
        is_success: true if ``next_obs`` reaches the goal, bool.
        steps: number of steps of the episode so far, including this step, int32.
        reward: reward of the step, float32.
        termination: true if the step terminates the episode, bool.
        truncation: true if the step truncates the episode, bool; false if ``termination`` is true.
        next_goal: goal of the next step, if the episode continues; by default the same goal.
        is_followed: true if ``next_goal`` is a new goal, bool.
    """

    obs: Observation
    action: Action
    next_obs: Observation
    is_success: jax.Array
    steps: jax.Array
    reward: jax.Array
    termination: jax.Array
    truncation: jax.Array
    next_goal: jax.Array
    is_followed: jax.Array

    @property
    def ends(self) -> jax.Array:
        """True if the step ends the episode, bool."""
        return self.termination | self.truncation

    @property
    def ends_goal(self) -> jax.Array:
        """True if this is the last step with its goal, because the episode ends or a new goal follows; bool."""
        return self.ends | self.is_followed


@dataclasses.dataclass(frozen=True)
class GoalSetter(abc.ABC):
    """Chooses goals. Its methods process one environment, without axis B. Fields of a subclass are its settings."""

    def init(self, task: GoalTask) -> Any:
        """Return the memory of one environment before its first episode, a pytree of arrays; by default empty."""
        del task
        return ()

    @abc.abstractmethod
    def start(self, memory: Any, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        """Return the goal to set and the new memory; ``obs`` is the current observation, with the goal set so far."""

    def after(self, memory: Any, task: GoalTask, step: GoalStep, key: Key) -> tuple[GoalStep, Any]:
        """Return ``step``, possibly changed, and the new memory. Called after each step; by default, no change."""
        del task, key
        return step, memory


@dataclasses.dataclass(frozen=True)
class GoalAssignment:
    """Applies a goal setter in B environments; stores memory and keys in ``_internal.goals`` of their state.

    Attributes:
        setter: the goal setter.
        task: reward and success functions of the goals.
    """

    setter: GoalSetter
    task: GoalTask

    def begin(self, state: EnvState) -> EnvState:
        """Return ``state``, the state after a reset, with the setter's initial memory, its keys and its first goals."""
        keys = jax.vmap(jax.random.fold_in, (0, None))(state._internal.key, _STREAM)
        rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (*keys.shape, *x.shape)), self.setter.init(self.task))
        internal = state._internal | {"goals": PyTreeDict(memory=rows, key=keys)}
        return self.start(state.replace(_internal=internal), jnp.ones(keys.shape, jnp.bool_))

    def start(self, state: EnvState, mask: jax.Array) -> EnvState:
        """Return the state with new goals of the setter where episodes start: where ``mask`` ``[B]`` is True."""

        def one(memory: Any, key: Key, obs: Observation, starts: jax.Array) -> tuple[jax.Array, Any, Key]:
            key, start_key = jax.random.split(key)
            goal, after = self.setter.start(memory, self.task, obs, start_key)
            goal = jnp.where(starts, goal.astype(obs.desired_goal.dtype), obs.desired_goal)
            return goal, tree_where(starts, after, memory), key

        goals_state = state._internal.goals
        goals, memory, keys = jax.vmap(one)(goals_state.memory, goals_state.key, state.obs, mask)
        return _with_goals(state, goals, PyTreeDict(memory=memory, key=keys))

    def steer(
        self, env_state: EnvState, action: Action, stepped: EnvState, mask: jax.Array
    ) -> tuple[EnvState, GoalStep, PyTreeDict]:
        """Call ``setter.after`` where ``mask`` ``[B]`` is True; return new ``stepped``, step, and memory with keys."""

        def one(memory: Any, key: Key, step: GoalStep, counts: jax.Array) -> tuple[GoalStep, Any, Key]:
            key, step_key = jax.random.split(key)
            changed = self.setter.after(memory, self.task, step, step_key)
            return *tree_where(counts, changed, (step, memory)), key

        info, goals_state = stepped.info, env_state._internal.goals
        step = GoalStep(
            obs=env_state.obs,
            action=action,
            next_obs=stepped.obs,
            is_success=info.is_success,
            steps=info.steps,
            reward=stepped.reward,
            termination=info.termination,
            truncation=info.truncation,
            next_goal=env_state.obs.desired_goal,
            is_followed=jnp.zeros_like(info.is_success),
        )
        step, memory, keys = jax.vmap(one)(goals_state.memory, goals_state.key, step, mask)
        info = info.replace(termination=step.termination, truncation=step.truncation & ~step.termination)
        done = jnp.where(mask, step.ends, stepped.done)
        return stepped.replace(reward=step.reward, done=done, info=info), step, PyTreeDict(memory=memory, key=keys)

    def go_on(self, state: EnvState, step: GoalStep, goals_state: PyTreeDict, starts: jax.Array) -> EnvState:
        """Return ``state`` with new goals where ``starts`` ``[B]`` is True, and with ``step.next_goal`` elsewhere."""
        goals = jnp.where(starts[:, None], state.obs.desired_goal, step.next_goal)
        return self.start(_with_goals(state, goals, goals_state), starts)


def goals_of_rows(setter: GoalSetter, env: Env) -> GoalAssignment:
    """Return ``setter`` with the goal task of ``env``. Raises ``ValueError`` if ``env`` has no usable goal task."""
    return GoalAssignment(setter, required_goal_task(env, "env.goal_setter"))


def _with_goals(state: EnvState, goals: jax.Array, goals_state: PyTreeDict) -> EnvState:
    """Return the state with ``goals`` ``[B, G]`` for the next step; ``info.next_obs`` keeps the goals of this step."""
    inner = state._internal.inner.replace(desired_goal=goals)
    internal = state._internal | {"inner": inner, "goals": goals_state}
    return state.replace(obs=with_desired_goal(state.obs, goals), _internal=internal)


def required_goal_task(env: Env, setting: str) -> GoalTask:
    """Return the goal task of an environment; ``setting`` is the name of the setting that needs it, for messages.

    Raises:
        ValueError: the environment has no known goal task, or a wrapper makes rewards under other goals unavailable.
    """
    layer = env
    while isinstance(layer, EnvWrapper):
        if layer.hides_goals is not None:
            raise ValueError(f"{setting} needs rewards under other goals, but {layer.hides_goals}: remove one setting.")
        layer = layer.env
    task = env.goal_task
    if task is None:
        keys = "this environment's observations lack the keys observation, achieved_goal and desired_goal"
        problem = "the rewards for other goals are unknown here" if is_goal_space(env.obs_space) else keys
        raise ValueError(
            f"{setting} needs an environment with a goal task, but {problem}: use one of env=goal/..., wrap yours in a "
            "GoalWrapper, or set env.goal_task of a Gymnasium environment with goals."
        )
    return task
