"""The random baseline: acts uniformly at random and learns nothing.

It measures what an environment gives for nothing, and how fast it can be stepped.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from evorl.agent import AgentState, RandomAgent
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict
from evorl.workflows.on_policy import OnPolicyWorkflow


class RandomAgentWorkflow(OnPolicyWorkflow):
    """Rollouts of a ``RandomAgent``; only episodes are counted."""

    agent: RandomAgent
    total_timesteps: float = 1e5

    default_num_envs: ClassVar[int] = 4

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Nothing to learn; the mean reward of a step is reported."""
        return agent_state, opt_state, PyTreeDict(reward=trajectory.rewards.mean())
