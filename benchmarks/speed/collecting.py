"""Rollouts of PPO's agent without learning: only acting and stepping."""

from __future__ import annotations

from typing import Any

import jax

from evorl.agent import AgentState
from evorl.algorithms.ppo import PPOWorkflow
from evorl.sample_batch import SampleBatch
from evorl.types import Key, PyTreeDict


class CollectingWorkflow(PPOWorkflow):
    """PPO without updates; it collects with the same code as PPO."""

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Return the mean of each array that PPO would use, so that no program omits its computation."""
        del key, progress
        numbers = {"obs": trajectory.obs, "actions": trajectory.actions, "rewards": trajectory.rewards}
        numbers |= {"next_obs": trajectory.next_obs, **trajectory.extras.policy_extras}
        means = {name: x.astype("float32").mean() for name, x in numbers.items()}
        return agent_state, opt_state, PyTreeDict(means)
