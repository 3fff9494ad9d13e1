"""Every step of a few of the episodes that are played side by side, written down inside of the compiled program."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from evorl.envs.env import EnvState
from evorl.envs.vector import VectorEnv
from evorl.ops.trees import Packed, pack
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Observation, PyTreeData, PyTreeDict


class EpisodeSteps(PyTreeData):
    """Every step of n episodes. What is past an episode's length means nothing; T is the longest there can be.

    Attributes:
        obs: what was observed before each step and after the last, ``[n, T + 1, ...]``.
        physics: at the same moments, ``[n, T + 1, ...]`` by name, see ``Env.physics``.
        actions: of the agent, ``[n, T, ...]``.
        rewards: float32 ``[n, T]``.
        terminations: whether a step ended the task, rather than time the episode; bool ``[n, T]``.
        is_success: whether a step is at its goal, bool ``[n, T]``; ``None`` without goals.
    """

    obs: Observation
    physics: PyTreeDict
    actions: Action
    rewards: jax.Array
    terminations: jax.Array
    is_success: jax.Array | None


class StepRecord(PyTreeData):
    """The steps so far of n episodes, packed.

    Attributes:
        moments: observations and physics, ``[T + 1, n, features]``.
        steps: all else, ``[T, n, features]``.
    """

    moments: Packed[tuple]
    steps: Packed[tuple]

    def with_step(self, env: VectorEnv, step: jax.Array, transition: SampleBatch, env_state: EnvState) -> Self:
        """With one step more, the ``step``-th, which led to ``env_state``; both of B environments."""
        num_rows = jax.tree.leaves(self.steps)[0].shape[1]
        moment = (transition.next_obs, env.physics(env_state))
        return self.replace(
            moments=_written(self.moments, step + 1, _first(moment, num_rows)),
            steps=_written(self.steps, step, _first(_told(transition, env_state), num_rows)),
        )

    def by_episode(self) -> EpisodeSteps:
        """Episode by episode."""
        moments, steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (self.moments, self.steps))
        obs, physics = moments.unpack()
        actions, rewards, terminations, is_success = steps.unpack()
        return EpisodeSteps(
            obs=obs,
            physics=physics,
            actions=actions,
            rewards=rewards,
            terminations=terminations,
            is_success=is_success,
        )


def new_step_record(env: VectorEnv, env_state: EnvState, num_rows: int, num_steps: int) -> StepRecord:
    """The record of the first n environments, with their first moment.

    Args:
        env: a vector environment that stands still when an episode has ended.
        env_state: after a reset.
        num_rows: n, at most as many as there are.
        num_steps: T.
    """
    num_rows = min(num_rows, env_state.done.shape[0])
    moment = pack(_first((env_state.obs, env.physics(env_state)), num_rows))
    actions = env.action_space.zeros(env_state.done.shape)
    blank = pack(_first(_told(SampleBatch(actions=actions, rewards=env_state.reward), env_state), num_rows))
    moments, steps = (
        jax.tree.map(lambda x, length=length: jnp.zeros((length, *x.shape), x.dtype), row)
        for row, length in ((moment, num_steps + 1), (blank, num_steps))
    )
    return StepRecord(moments=jax.tree.map(lambda rows, row: rows.at[0].set(row), moments, moment), steps=steps)


def _told(transition: SampleBatch, env_state: EnvState) -> tuple:
    info = env_state.info
    return transition.actions, transition.rewards, info.termination, info.get("is_success")


def _first(tree: Any, num_rows: int) -> Any:
    return jax.tree.map(lambda x: x[:num_rows], tree)


def _written(packed: Packed, place: jax.Array, row: Any) -> Packed:
    return jax.tree.map(lambda rows, row: rows.at[place].set(row), packed, pack(row))
