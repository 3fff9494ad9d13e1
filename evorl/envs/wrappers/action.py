"""Wrappers that change actions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from evorl.config.values import positive
from evorl.envs.action_conversion import ActionConversion
from evorl.envs.env import Env, EnvState
from evorl.envs.space import Space
from evorl.envs.wrappers.wrapper import Wrapper
from evorl.ops.trees import tree_where
from evorl.types import Action, Key, PyTreeDict


class ActionConversionWrapper(Wrapper):
    """Converts agents' actions to the environment's action space, see ``ActionConversion``.

    Raises:
        NoActionConversion: no agent can act in the environment's action space.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.conversion = ActionConversion(env.action_space)

    @property
    def action_space(self) -> Space:
        """Action space of the agents."""
        return self.conversion.agent_space

    @property
    def goal_task(self) -> Any:
        """The goal task, with a reward function of agents' actions; ``None`` without goals."""
        task, to_env = self.env.goal_task, self.conversion.to_env
        return task and task.with_reward(
            lambda achieved, desired, action, obs: task.reward_fn(achieved, desired, to_env(action), obs)
        )

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self.env.step(env_state, self.conversion.to_env(action))


class ActionRepeatWrapper(Wrapper):
    """Applies each action ``num_repeats`` times, or until the episode ends.

    The rewards are summed; the observation, ``metrics`` and ``is_success`` are from the last step. Apply it inside an
    ``EpisodeWrapper``, so that ``steps`` counts actions of the agent.

    Args:
        env: a single environment.
        num_repeats: environment steps per action.
        max_episode_steps: time limit in environment steps, or ``None``. If it is not a multiple of ``num_repeats``,
            the last action before the limit is applied fewer times. An outer ``EpisodeWrapper`` must end the episode.
        on_host: true if ``env`` is a simulator on the host, which repeats the actions and sums the rewards itself.
    """

    hides_goals = "env.action_repeat sums the rewards of several steps"

    def __init__(
        self, env: Env, num_repeats: int, max_episode_steps: int | None = None, *, on_host: bool = False
    ) -> None:
        super().__init__(env)
        self.num_repeats, self._on_host = positive(num_repeats, "num_repeats"), on_host
        limits = [limit for limit in (max_episode_steps, None if on_host else env.max_episode_steps) if limit]
        self.uneven_limit = min(limits) if limits and min(limits) % self.num_repeats else None

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit of ``env`` in actions, rounded up; ``None`` if it has no limit."""
        inner = self.env.max_episode_steps
        return None if inner is None else -(-inner // self.num_repeats)

    def reset(self, key: Key) -> EnvState:
        return self._counted(self.env.reset(key), jnp.zeros((), jnp.int32))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        if self._on_host:
            # A ``GoalWrapper`` computes the reward of the last step; the simulator has summed all of them.
            return self.env.step(env_state, action).replace(reward=env_state.env_state.reward)
        count = None if self.uneven_limit is None else env_state._internal.repeated_steps

        def repeat(state: EnvState, number: jax.Array) -> tuple[EnvState, None]:
            stepped = self.env.step(state, action)
            stepped = stepped.replace(reward=state.reward + stepped.reward)
            is_over = state.done | state.info.termination | state.info.truncation
            is_over = is_over if count is None else is_over | (count + number >= self.uneven_limit)
            return tree_where(is_over, state, stepped), None

        # Outer wrappers may have added entries to the state; keep only the entries of ``env.step``.
        shapes = jax.eval_shape(self.env.step, env_state, action)
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.replace(env_state=None, _internal=None))
        internal = PyTreeDict({name: env_state._internal[name] for name in shapes._internal})
        start = blank.replace(env_state=env_state.env_state, _internal=internal)
        numbers = jnp.arange(self.num_repeats, dtype=jnp.int32)
        state = jax.lax.scan(repeat, start, numbers)[0]
        return state if count is None else self._counted(state, count + self.num_repeats)

    def _counted(self, state: EnvState, count: jax.Array) -> EnvState:
        """Store ``count``, the environment steps of the episode so far, in the state if the time limit needs it."""
        if self.uneven_limit is None:
            return state
        return state.replace(_internal=state._internal | {"repeated_steps": count})
