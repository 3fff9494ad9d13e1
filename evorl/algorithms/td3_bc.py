"""TD3+BC (Fujimoto & Gu 2021, https://arxiv.org/abs/2106.06860): TD3 with behavior cloning, for offline learning.

A policy trained offline must stay near the actions of the dataset, because no data corrects the critics elsewhere. The
policy's loss therefore combines the normalized values of its actions and their squared distance from recorded actions.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.algorithms.td3 import TD3Agent, TD3Workflow
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, pytree_field


class TD3BCAgent(TD3Agent):
    """Agent of TD3 with a behavior-cloning term in the policy's loss.

    Attributes:
        value_weight: weight of the values relative to the behavior-cloning term, alpha of the paper.
    """

    value_weight: Annotated[float, Within("[0, inf)")] = 2.5
    normalize_obs: bool = pytree_field(static=True, default=True, kw_only=True)

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return ``-lambda E[Q_1(s, pi(s))] + E[(pi(s) - a)^2]``, where ``lambda = alpha / E|Q_1|`` (eq. 3 to 5)."""
        actions = self.policy_actions(agent_state, policy_params, batch.obs)
        values = self.first_values(agent_state, batch.obs, actions)
        scale = collectives.mean_over_shares(jax.lax.stop_gradient(jnp.abs(values)).mean())
        distance = jnp.square(actions - batch.actions).mean()
        loss = distance - self.value_weight * values.mean() / jnp.maximum(scale, 1e-6)
        return loss, PyTreeDict(actor_loss=loss)


class TD3BCWorkflow(TD3Workflow):
    """TD3+BC: learns from the recorded transitions that ``replay.load`` names, without environment steps."""

    agent: TD3BCAgent
    total_timesteps: float = 1e6
    actor_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    offline: bool = pytree_field(static=True, default=True)
