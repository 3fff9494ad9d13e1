"""Who chooses goals: what a setter is, and how a vector environment asks one.

A setter is a pure function of one environment and of what it remembers of it. It may give another goal, pay another
reward, or end the episode. What it remembers is part of the environment's state: it is saved, resumed and sharded with
it, and every environment has a memory of its own, so that any of them may be stepped alone.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.env import Env, EnvAround, EnvState
from evorl.envs.goals.task import GoalTask, is_goal_space, with_desired_goal
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, Observation, PyTreeData, PyTreeDict

# Folded into an environment's key, whose other numbers are those of its episodes.
_STREAM = 2**32 - 1


class GoalStep(PyTreeData):
    """A step as a setter sees it. The last five entries it may change.

    Attributes:
        obs: with the goal that was asked for.
        action: what was done.
        next_obs: the true successor, under the same goal.
        is_success: whether it is at the goal, bool.
        steps: of the episode so far, int32.
        reward: float32.
        termination: bool.
        truncation: bool; never with ``termination``.
        next_goal: what is asked for from now on, if the episode goes on.
        is_followed: whether that is another goal, bool.
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
        """Whether the episode ends with it, bool."""
        return self.termination | self.truncation

    @property
    def ends_goal(self) -> jax.Array:
        """Whether its goal is asked for no longer, since the episode ends or another one follows; bool."""
        return self.ends | self.is_followed


@dataclasses.dataclass(frozen=True)
class GoalSetter(abc.ABC):
    """Chooses goals. All arguments are of one environment, without leading axes; its fields are its settings."""

    def init(self, task: GoalTask) -> Any:
        """What it remembers before the first episode: a pytree of arrays."""
        del task
        return ()

    @abc.abstractmethod
    def start(self, memory: Any, task: GoalTask, obs: Observation, key: Key) -> tuple[jax.Array, Any]:
        """The goal of an episode that starts with ``obs``, which has the environment's own, and what it remembers."""

    def after(self, memory: Any, task: GoalTask, step: GoalStep, key: Key) -> tuple[GoalStep, Any]:
        """The step as it is to count, and what it remembers. By default nothing changes."""
        del task, key
        return step, memory


@dataclasses.dataclass(frozen=True)
class GoalsOfRows:
    """A setter at work in B environments; what it remembers stands in their state as ``_internal.goals``.

    Attributes:
        setter: who chooses.
        task: what reaching a goal is worth.
    """

    setter: GoalSetter
    task: GoalTask

    def begin(self, state: EnvState) -> EnvState:
        """The state after a reset, with the setter's goals and a fresh memory, and keys folded from the rows' own."""
        keys = jax.vmap(jax.random.fold_in, (0, None))(state._internal.key, _STREAM)
        rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (*keys.shape, *x.shape)), self.setter.init(self.task))
        internal = state._internal | {"goals": PyTreeDict(memory=rows, key=keys)}
        return self.start(state.replace(_internal=internal), jnp.ones(keys.shape, jnp.bool_))

    def start(self, state: EnvState, mask: jax.Array) -> EnvState:
        """The state with the setter's goals where episodes start, bool ``[B]``."""

        def one(memory: Any, key: Key, obs: Observation, starts: jax.Array) -> tuple[jax.Array, Any, Key]:
            key, start_key = jax.random.split(key)
            goal, after = self.setter.start(memory, self.task, obs, start_key)
            goal = jnp.where(starts, goal.astype(obs.desired_goal.dtype), obs.desired_goal)
            return goal, tree_where(starts, after, memory), key

        remembered = state._internal.goals
        goals, memory, keys = jax.vmap(one)(remembered.memory, remembered.key, state.obs, mask)
        return _asking(state, goals, PyTreeDict(memory=memory, key=keys))

    def steer(
        self, env_state: EnvState, action: Action, stepped: EnvState, mask: jax.Array
    ) -> tuple[EnvState, GoalStep, PyTreeDict]:
        """The outcome of a step as the setter has it count where ``mask`` ``[B]`` holds, and what it remembers then."""

        def one(memory: Any, key: Key, step: GoalStep, counts: jax.Array) -> tuple[GoalStep, Any, Key]:
            key, step_key = jax.random.split(key)
            changed = self.setter.after(memory, self.task, step, step_key)
            return *tree_where(counts, changed, (step, memory)), key

        info, remembered = stepped.info, env_state._internal.goals
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
        step, memory, keys = jax.vmap(one)(remembered.memory, remembered.key, step, mask)
        info = info.replace(termination=step.termination, truncation=step.truncation & ~step.termination)
        done = jnp.where(mask, step.ends, stepped.done)
        return stepped.replace(reward=step.reward, done=done, info=info), step, PyTreeDict(memory=memory, key=keys)

    def go_on(self, state: EnvState, step: GoalStep, remembered: PyTreeDict, starts: jax.Array) -> EnvState:
        """The state after a step that was steered, and new goals where episodes start, bool ``[B]``."""
        goals = jnp.where(starts[:, None], state.obs.desired_goal, step.next_goal)
        return self.start(_asking(state, goals, remembered), starts)


def goals_of_rows(setter: GoalSetter, env: Env) -> GoalsOfRows:
    """A setter at work in copies of ``env``. Raises ``ValueError`` where there are no goals to set."""
    return GoalsOfRows(setter, required_goal_task(env, "env.goal_setter"))


def _asking(state: EnvState, goals: jax.Array, remembered: PyTreeDict) -> EnvState:
    """The state in which the goals ``[B, G]`` are asked for. What was the successor under the last ones stays."""
    inner = state._internal.inner.replace(desired_goal=goals)
    internal = state._internal | {"inner": inner, "goals": remembered}
    return state.replace(obs=with_desired_goal(state.obs, goals), _internal=internal)


def required_goal_task(env: Env, asked_by: str) -> GoalTask:
    """What reaching a goal is worth in an environment, for ``asked_by``, a setting, which needs to know.

    Raises:
        ValueError: it has no goals, or a wrapper stands between them and what a step is worth.
    """
    layer = env
    while isinstance(layer, EnvAround):
        if layer.hides_goals is not None:
            raise ValueError(
                f"{asked_by} needs to know what a step is worth under another goal, and {layer.hides_goals}."
            )
        layer = layer.env
    task = env.goal_task
    if task is None:
        known = "a dict of observation, achieved_goal and desired_goal"
        what = (
            "does not say what reaching one is worth" if is_goal_space(env.obs_space) else f"does not observe {known}"
        )
        raise ValueError(
            f"{asked_by} needs an environment with goals, and this one {what}: take one of env=goal/..., or put a "
            "GoalWrapper around yours."
        )
    return task
