"""Truncated quantile critics (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269).

Soft actor-critic whose critics estimate quantiles of the return distribution. Targets are the pooled atoms of all
target critics without the largest ones, which controls overestimation finely and independently of the number of
critics.
"""

from __future__ import annotations

from typing import ClassVar

import jax

from evorl.agent import AgentState
from evorl.agents.quantile_critics import QuantileCriticsAgent, QuantileCriticSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.ops.value_distributions import drop_largest_atoms
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode


class TQCAgent(QuantileCriticsAgent, SACAgent):
    """A stochastic policy, an ensemble of quantile critics with target networks, and a temperature.

    Attributes:
        dropped_atoms: number of largest target atoms dropped per critic; ``None`` means 0.
    """

    dropped_atoms: int | None = 2

    part_settings: ClassVar[PyTreeNode] = QuantileCriticSettings(num_critics=5)

    def __post_init__(self) -> None:
        if (self.dropped_atoms or 0) >= self.critic_network.num_atoms:
            raise ValueError(
                f"agent.dropped_atoms={self.dropped_atoms} must be less than agent.num_atoms="
                f"{self.critic_network.num_atoms}, the number of quantiles per critic: drop fewer."
            )

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the quantile Huber loss against the truncated mixture of target atoms (eq. 10 ff.), and metrics."""
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        next_actions, next_log_prob, _ = self.sample_actions(policy, keys)
        next_atoms = self.critics(agent_state, params.target_critic, batch.next_obs, next_actions)  # [K, N, M]
        next_atoms = drop_largest_atoms(next_atoms, next_atoms.shape[0] * (self.dropped_atoms or 0))
        next_atoms -= (self.alpha(params.log_temperature) * next_log_prob)[:, None]
        return self.quantile_loss(critic_params, agent_state, batch, next_atoms, self.critic_network.num_atoms)


class TQCWorkflow(SACWorkflow):
    """TQC: each update trains the critics, then policy and temperature if due, then moves the target critics."""

    agent: TQCAgent
