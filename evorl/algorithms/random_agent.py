"""The random baseline: acts uniformly at random and learns nothing.

It measures what an environment gives for nothing, and how fast it can be stepped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from evorl.agent import Agent, AgentState, RandomAgent
from evorl.envs.env import Env
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict
from evorl.workflows.building import node_from_config
from evorl.workflows.on_policy import OnPolicyWorkflow


class RandomAgentWorkflow(OnPolicyWorkflow):
    """Rollouts of a ``RandomAgent``; only episodes are counted."""

    @classmethod
    def make_agent(cls, config: Mapping[str, Any], env: Env) -> Agent:
        """A ``RandomAgent``; it acts in any space."""
        return node_from_config(RandomAgent, config, "agent")

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Nothing to learn; the mean reward of a step is reported."""
        return agent_state, opt_state, PyTreeDict(reward=trajectory.rewards.mean())
