"""Random baseline: samples actions from the action space and does not learn.

This baseline measures the return of a random policy and the throughput of an environment.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from evorl.agent import AgentState
from evorl.agents.random_actions import RandomAgent
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict
from evorl.workflows.on_policy import OnPolicyWorkflow


class RandomAgentWorkflow(OnPolicyWorkflow):
    """Runs rollouts of a ``RandomAgent`` and reports the statistics of its episodes."""

    agent: RandomAgent
    total_timesteps: float = 1e5

    default_num_envs: ClassVar[int] = 4

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Return the states unchanged, and the mean reward per step."""
        return agent_state, opt_state, PyTreeDict(reward=trajectory.rewards.mean())
