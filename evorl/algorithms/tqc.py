"""Truncated quantile critics (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269).

Soft actor-critic whose critics estimate quantiles of the return distribution. Targets are the pooled atoms of all
target critics without the largest ones, so that overestimation is controlled in small steps and independently of the
number of critics.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.part_settings import SoftActorCriticSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.env import Env
from evorl.ops.value_distributions import quantile_huber, without_greatest
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode, pytree_field


class TQCSettings(SoftActorCriticSettings):
    """Settings of the networks.

    Attributes:
        num_atoms: number of quantiles of each critic.
    """

    num_atoms: int = 25


class TQCAgent(SACAgent):
    """A stochastic policy, an ensemble of quantile critics with target networks, and a temperature.

    Attributes:
        dropped_atoms: number of the largest target atoms that are dropped, per critic; ``None`` for 0.
    """

    dropped_atoms: int | None = 2
    support_low: float = pytree_field(default=-10.0, kw_only=True, setting=False)
    support_high: float = pytree_field(default=10.0, kw_only=True, setting=False)

    part_settings: ClassVar[PyTreeNode] = TQCSettings(num_critics=5)
    acts_in: ClassVar[ActionSpaces] = ActionSpaces.BOXES

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the networks, with critics that output ``num_atoms`` quantiles."""
        num_atoms = settings.pop("num_atoms")
        parts = super().parts(settings, env)
        return {**parts, "critic_network": parts["critic_network"].clone(num_atoms=num_atoms)}

    def __post_init__(self) -> None:
        if (self.dropped_atoms or 0) >= self.critic_network.num_atoms:
            raise ValueError(
                f"agent.dropped_atoms={self.dropped_atoms} must be less than agent.num_atoms="
                f"{self.critic_network.num_atoms}, the quantiles of a critic: drop fewer."
            )

    def expected(self, outputs: jax.Array) -> jax.Array:
        """Return the means of the distributions ``[..., M]``."""
        return outputs.mean(axis=-1)

    def pool_critics(self, outputs: jax.Array) -> jax.Array:
        """Return the mean over all atoms of all critics, from ``[K, N, M]`` to ``[N]``."""
        return outputs.mean(axis=(0, -1))

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the quantile Huber loss of all critics against the truncated mixture of targets (eq. 10 ff.)."""
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        next_actions, next_log_prob, _ = self.sample_actions(policy, keys)
        next_atoms = self.critics(agent_state, params.target_critic, batch.next_obs, next_actions)  # [K, N, M]
        next_atoms = without_greatest(next_atoms, next_atoms.shape[0] * (self.dropped_atoms or 0))
        next_atoms -= (jnp.exp(params.log_temperature) * next_log_prob)[:, None]
        targets = jax.lax.stop_gradient(batch.rewards[:, None] + batch.extras.discounts[:, None] * next_atoms)
        atoms = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        losses = jax.vmap(quantile_huber, (0, None))(atoms, targets) / atoms.shape[-1]  # [K, N]
        loss = (batch.extras.weights * losses).mean(axis=-1).sum()
        errors = targets.mean(axis=-1) - atoms.mean(axis=-1)
        return loss, PyTreeDict(critic_loss=loss, q_value=atoms.mean(), td_errors=errors)


class TQCWorkflow(SACWorkflow):
    """TQC: updates critics, actor, temperature and target critics, in this order."""

    agent: TQCAgent
