"""States of off-policy workflows, and of learners that are nested in other workflows."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import jax

from evorl.agent import AgentState
from evorl.agents.random_actions import random_actions
from evorl.envs.env import EnvState
from evorl.envs.space import Space
from evorl.metrics import WideCounter
from evorl.ops.normalization import RewardScale
from evorl.sample_batch import SampleBatch
from evorl.types import Entry, Key, PyTreeDict, State

DrawnBatches: TypeAlias = tuple[SampleBatch, jax.Array, jax.Array]  # batches, rows and environments, ``[U, N, ...]``


class LearnerState(State):
    """State of an off-policy learner without environments, see ``OffPolicyWorkflow.init_learning``.

    Attributes:
        agent_state: parameters and statistics of the agent.
        opt_state: state of the optimizers.
        replay_state: state of the replay buffer, a ``ReplayState`` or a subclass, with data leaves ``[rows, B, ...]``.
    """

    agent_state: AgentState
    opt_state: Any
    replay_state: Annotated[Any, Entry(axis=1)]


class OffPolicyState(LearnerState):
    """State of an off-policy workflow.

    Attributes:
        env_state: state of the environments ``[B, ...]``, with the agent's recurrent state.
        key: random key of the training run.
        eval_key: random key of evaluations.
        iterations: number of finished iterations.
        recorded_state: state of a buffer of recorded transitions; absent without ``replay.mixed`` and ``replay.load``.
        reward_scale: discounted sums of past rewards, and their statistics; absent without ``reward_bound``.
        intrinsic: state of the intrinsic reward, ``IntrinsicState``; absent without intrinsic rewards.
        intrinsic_metrics: metrics of the intrinsic reward for the last trajectory; absent without intrinsic rewards.
    """

    env_state: Annotated[EnvState, Entry(axis=0)]
    key: Key
    eval_key: Key
    iterations: WideCounter
    recorded_state: Annotated[Any, Entry(axis=1, optional=True)]
    reward_scale: Annotated[RewardScale, Entry(axis=0, optional=True)]
    intrinsic: Annotated[Any, Entry(optional=True)]
    intrinsic_metrics: Annotated[PyTreeDict, Entry(optional=True)]


def transition_spec(env_state: EnvState, action_space: Space, extras: PyTreeDict) -> SampleBatch:
    """Return shapes and dtypes of one stored transition, without leading axes.

    Args:
        env_state: shapes of the state ``[1, ...]`` of one environment.
        action_space: action space of the agent.
        extras: shapes of the stored extras, ``[1, ...]``.
    """
    actions = jax.eval_shape(lambda key: random_actions(action_space, key, 1), jax.random.key(0))
    stored = SampleBatch(
        obs=env_state.obs,
        actions=actions,
        rewards=env_state.reward,
        next_obs=env_state.obs,
        dones=env_state.done,
        extras=extras,
    )
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stored)
