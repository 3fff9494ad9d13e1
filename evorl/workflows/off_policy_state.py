"""States of off-policy workflows, and of learners that are nested in other workflows."""

from __future__ import annotations

from typing import Annotated, Any

from evorl.agent import AgentState
from evorl.envs.env import EnvState
from evorl.metrics import WideCounter
from evorl.ops.normalization import RewardScale
from evorl.types import Entry, Key, PyTreeDict, State


class LearnerState(State):
    """State of an off-policy learner without environments, see ``OffPolicyWorkflow.init_learning``.

    Attributes:
        agent_state: parameters and statistics of the agent.
        opt_state: state of the optimizers.
        replay_state: ``ReplayState`` of the buffer, or the subclass that it uses; leaves ``[rows, B, ...]``.
    """

    agent_state: AgentState
    opt_state: Any
    replay_state: Annotated[Any, Entry(axis=1)]


class OffPolicyState(LearnerState):
    """State of an off-policy workflow.

    Attributes:
        env_state: state of the environments ``[B, ...]``, with the agent's recurrent state.
        key: random key of the training.
        eval_key: random key of evaluations.
        iterations: number of finished iterations.
        reward_scale: running scale of rewards; absent without ``reward_bound``.
        intrinsic: state of the intrinsic reward, ``IntrinsicState``; absent without intrinsic rewards.
        intrinsic_metrics: metrics of the intrinsic reward for the last trajectory; absent without one.
    """

    env_state: Annotated[EnvState, Entry(axis=0)]
    key: Key
    eval_key: Key
    iterations: WideCounter
    reward_scale: Annotated[RewardScale, Entry(axis=0, optional=True)]
    intrinsic: Annotated[Any, Entry(optional=True)]
    intrinsic_metrics: Annotated[PyTreeDict, Entry(optional=True)]
