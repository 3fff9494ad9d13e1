"""Base of soft actor-critics whose critics estimate quantiles of the return, such as TQC and BRO."""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import CriticEnsembleAgent
from evorl.agents.part_settings import SoftActorCriticSettings
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.env import Env
from evorl.ops.value_distributions import quantile_huber
from evorl.sample_batch import SampleBatch
from evorl.types import Params, PyTreeDict


class QuantileCriticSettings(SoftActorCriticSettings):
    """Network settings of a soft actor-critic with quantile critics.

    Attributes:
        num_atoms: number of quantiles of each critic.
    """

    num_atoms: int = 25


class QuantileCriticsAgent(CriticEnsembleAgent):
    """Mixin for critics that output quantiles ``[K, N, M]``; inherit it before a soft actor-critic."""

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.BOXES

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        num_atoms = settings.pop("num_atoms")
        parts = super().parts(settings, env)
        return {**parts, "critic_network": parts["critic_network"].clone(num_atoms=num_atoms)}

    def expected(self, outputs: jax.Array) -> jax.Array:
        """Return the means ``[...]`` of distributions with quantiles ``[..., M]``."""
        return outputs.mean(axis=-1)

    def pool_critics(self, outputs: jax.Array) -> jax.Array:
        """Return the mean over all quantiles of all critics, from ``[K, N, M]`` to ``[N]``."""
        return outputs.mean(axis=(0, -1))

    def quantile_loss(
        self,
        critic_params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        next_atoms: jax.Array,
        divisor: int = 1,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the quantile Huber loss against ``r + discount * next_atoms``, summed over critics, and metrics.

        ``next_atoms`` are equally likely values of the next states, ``[N, J]``, minus the costs of their actions. The
        loss is divided by ``divisor``.
        """
        targets = jax.lax.stop_gradient(batch.rewards[:, None] + batch.extras.discounts[:, None] * next_atoms)
        atoms = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        losses = jax.vmap(quantile_huber, (0, None))(atoms, targets) / divisor  # [K, N]
        loss, errors = (batch.extras.weights * losses).mean(axis=-1).sum(), targets.mean(axis=-1) - atoms.mean(axis=-1)
        return loss, PyTreeDict(critic_loss=loss, q_value=atoms.mean(), td_errors=errors)
