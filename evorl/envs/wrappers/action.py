"""Wrappers that change what an action does."""

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
from evorl.types import Action, PyTreeDict


class ActionConversionWrapper(Wrapper):
    """Takes actions of agents and hands the environment its own, see ``ActionConversion``.

    Raises:
        NoActionConversion: no agent can act in the environment's action space.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.conversion = ActionConversion(env.action_space)

    @property
    def action_space(self) -> Space:
        """The space in which agents act."""
        return self.conversion.agent_space

    @property
    def goal_task(self) -> Any:
        """See ``Env.goal_task``: its rewards are of agents' actions."""
        task, to_env = self.env.goal_task, self.conversion.to_env
        return task and task.with_reward(
            lambda achieved, desired, action, obs: task.reward_fn(achieved, desired, to_env(action), obs)
        )

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        return self.env.step(env_state, self.conversion.to_env(action))


class ActionRepeatWrapper(Wrapper):
    """Each action is applied ``num_repeats`` times, or until the episode ends; the rewards are summed.

    Put inside an ``EpisodeWrapper``, so that ``steps`` counts decisions.
    """

    hides_goals = "env.action_repeat pays for several steps at once"

    def __init__(self, env: Env, num_repeats: int) -> None:
        super().__init__(env)
        self.num_repeats = positive(num_repeats, "num_repeats")

    @property
    def max_episode_steps(self) -> int | None:
        """The inner limit, in decisions."""
        inner = self.env.max_episode_steps
        return None if inner is None else -(-inner // self.num_repeats)

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""

        def repeat(state: EnvState, _: None) -> tuple[EnvState, None]:
            stepped = self.env.step(state, action)
            stepped = stepped.replace(reward=state.reward + stepped.reward)
            return tree_where(state.done, state, stepped), None

        # Outer wrappers may have put more into the state: keep what the inner step returns, and reads.
        shapes = jax.eval_shape(self.env.step, env_state, action)
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.replace(env_state=None, _internal=None))
        internal = PyTreeDict({name: env_state._internal[name] for name in shapes._internal})
        start = blank.replace(env_state=env_state.env_state, _internal=internal)
        return jax.lax.scan(repeat, start, length=self.num_repeats)[0]
