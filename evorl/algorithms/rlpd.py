"""RLPD (Ball et al. 2023, https://arxiv.org/abs/2302.02948): reinforcement learning with prior data.

Soft actor-critic that learns online, with half of each batch from recorded transitions (``replay.mixed``). An ensemble
of critics with layer normalization permits many updates per step. Targets are the minimum over a random subset of the
target critics (REDQ, Chen et al. 2021, https://arxiv.org/abs/2101.05982); the policy maximizes the mean of all critics.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.part_settings import CategoricalSoftActorCriticSettings, TorsoDifferences, TorsoSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs.action_spaces import ActionSpaces
from evorl.ops import collectives
from evorl.ops.random import split_rows
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.replay_settings import ReplaySettings


class RLPDAgent(SACAgent):
    """Agent of SAC whose targets are the minimum over randomly sampled target critics.

    Attributes:
        num_target_critics: number of target critics that each update samples; their minimum is the target.
        entropy_in_targets: subtract the policy's log-probability, times the temperature, from the targets.
    """

    num_target_critics: int = pytree_field(default=2, kw_only=True)
    entropy_in_targets: bool = pytree_field(static=True, default=True, kw_only=True)
    target_entropy_scale: float | None = 0.5

    part_settings: ClassVar[PyTreeNode] = CategoricalSoftActorCriticSettings(
        network=TorsoSettings((256, 256), "relu", orthogonal=False),
        critic_network=TorsoDifferences(layer_norm=True),
        num_critics=10,
    )
    acts_in: ClassVar[ActionSpaces] = ActionSpaces.BOXES

    def __post_init__(self) -> None:
        if self.num_target_critics > self.critic_network.num_critics:
            raise ValueError(
                f"agent.num_target_critics={self.num_target_critics} is more than agent.num_critics="
                f"{self.critic_network.num_critics}: decrease it, or use more critics."
            )

    def pool_critics(self, outputs: jax.Array) -> jax.Array:
        """Return the mean of the expected values over the ensemble, from ``[K, N, ...]``."""
        return self.expected(outputs).mean(axis=0)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the soft Bellman loss against the minimum of the sampled target critics (REDQ), and metrics."""
        params = agent_state.params
        action_keys, sampling_keys = split_rows(keys)
        first_key = collectives.gather_rows(sampling_keys[:1])[0]  # identical on all devices
        sampled = jax.random.permutation(first_key, self.critic_network.num_critics)[: self.num_target_critics]
        targets = jax.tree.map(lambda x: x[sampled], params.target_critic)
        network = self.critic_network.clone(num_critics=self.num_target_critics)
        actions, log_prob, _ = self.sample_actions(self.policy(agent_state, params.policy, batch.next_obs), action_keys)
        next_outputs = self.critics(agent_state, targets, batch.next_obs, actions, network)
        if self.critic_network.num_atoms is None:
            next_outputs = next_outputs.min(axis=0)
        next_costs = self.alpha(params.log_temperature) * log_prob if self.entropy_in_targets else jnp.zeros(len(batch))
        outputs = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        return self.soft_bellman_loss(outputs, next_outputs, next_costs, batch)


class RLPDWorkflow(SACWorkflow):
    """RLPD: updates critics, every ``policy_delay``-th time also policy and temperature, then moves target networks.

    By default, the last of an iteration's 20 updates trains the policy. ``replay.load`` names the recorded transitions.
    """

    agent: RLPDAgent
    total_timesteps: float = 2.5e5
    updates_per_iteration: float = pytree_field(static=True, default=20)
    learning_starts: float = 5000.0
    replay_capacity: int = 1_000_000
    replay: ReplaySettings = ReplaySettings(mixed=True)
    policy_delay: int = 20

    @property
    def updates_per_policy_update(self) -> int:
        """Number of critic updates per policy update."""
        return self.policy_delay

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        opt_state = super().init_optimizers(agent_state)
        # The policy is updated when the count is a multiple of the delay. Counting from 1 makes that the last update.
        return opt_state if self.policy_delay == 1 else opt_state.replace(num_updates=jnp.ones((), jnp.int32))
