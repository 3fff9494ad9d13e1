"""Step-by-step records of the first n of B parallel episodes, written inside the compiled program."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from evorl.envs.env import AutoresetMode, EnvState
from evorl.envs.vector import VectorEnv
from evorl.ops.trees import Packed, pack, row_of
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Observation, PyTreeData, PyTreeDict


class EpisodeSteps(PyTreeData):
    """Every step of n episodes. T is the maximum length; entries past an episode's length are undefined.

    Attributes:
        obs: observations before each step and after the last, ``[n, T + 1, ...]``.
        physics: physical state at the same times, ``[n, T + 1, ...]`` by name, see ``Env.physics``.
        actions: actions of the agent, ``[n, T, ...]``.
        rewards: float32 ``[n, T]``.
        terminations: True if the step ended the task (not at a time limit), bool ``[n, T]``.
        is_success: True if the step reached the goal, bool ``[n, T]``; ``None`` for environments without goals.
    """

    obs: Observation
    physics: PyTreeDict
    actions: Action
    rewards: jax.Array
    terminations: jax.Array
    is_success: jax.Array | None


class StepRecord(PyTreeData):
    """Record of the steps so far of n episodes, packed into few arrays.

    Attributes:
        moments: observations and physics before each step and after the last, ``[T + 1, n, features]``.
        steps: actions, rewards, terminations and success of each step, ``[T, n, features]``.
    """

    moments: Packed[tuple]
    steps: Packed[tuple]

    def with_step(self, env: VectorEnv, step: jax.Array, transition: SampleBatch, env_state: EnvState) -> Self:
        """Return the record after step number ``step``, the ``transition`` ``[B, ...]`` that led to ``env_state``."""
        num_rows = jax.tree.leaves(self.steps)[0].shape[1]
        moment = (transition.next_obs, env.physics(env_state))
        return self.replace(
            moments=_written(self.moments, step + 1, row_of(moment, slice(num_rows))),
            steps=_written(self.steps, step, row_of(_step_data(transition, env_state), slice(num_rows))),
        )

    def by_episode(self) -> EpisodeSteps:
        """Return the recorded steps unpacked, with the episodes as the first axis."""
        moments, steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (self.moments, self.steps))
        return EpisodeSteps(*moments.unpack(), *steps.unpack())


def new_step_record(env: VectorEnv, env_state: EnvState, num_rows: int, num_steps: int) -> StepRecord:
    """Return a record of the first n environments that contains only their initial observations and physics.

    Args:
        env: vectorized environment.
        env_state: state of B environments after a reset.
        num_rows: n; a larger value than B is reduced to B.
        num_steps: maximum number of steps T.

    Raises:
        ValueError: the environment has physics, which a step that also starts the next episode replaces.
    """
    num_rows, physics = min(num_rows, env_state.done.shape[0]), env.physics(env_state)
    if physics and env.autoreset_mode in (AutoresetMode.NORMAL, AutoresetMode.FAST):
        raise ValueError(
            f"episodes of an environment with autoreset_mode={env.autoreset_mode.value} cannot be recorded: their last "
            "physical state would be that of the next episode. Build the environment with autoreset_mode=disabled."
        )
    moment = pack(row_of((env_state.obs, physics), slice(num_rows)))
    actions = env.action_space.zeros(env_state.done.shape)
    step = _step_data(SampleBatch(actions=actions, rewards=env_state.reward), env_state)
    blank = pack(row_of(step, slice(num_rows)))
    moments, steps = (
        jax.tree.map(lambda x, length=length: jnp.zeros((length, *x.shape), x.dtype), row)
        for row, length in ((moment, num_steps + 1), (blank, num_steps))
    )
    return StepRecord(moments=jax.tree.map(lambda rows, row: rows.at[0].set(row), moments, moment), steps=steps)


def _step_data(transition: SampleBatch, env_state: EnvState) -> tuple:
    info = env_state.info
    return transition.actions, transition.rewards, info.termination, info.get("is_success")


def _written(packed: Packed, index: jax.Array, row: Any) -> Packed:
    return jax.tree.map(lambda rows, row: rows.at[index].set(row), packed, pack(row))
