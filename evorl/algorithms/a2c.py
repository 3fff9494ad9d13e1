"""Advantage actor-critic (Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3), in its synchronous form.

Each short trajectory gives one gradient step: a policy gradient weighted by advantages, and a regression of the value
function on returns. Vectorized environments replace the paper's asynchronous learners.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, update_params
from evorl.agents.actor_critic import ActorCriticAgent, ActorCriticBatch
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import explained_variance, policy_gradient, squared_error
from evorl.ops.optimization import Optimizer
from evorl.ops.schedules import Schedule, value_at
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.on_policy import ActorCriticWorkflow


class A2CAgent(ActorCriticAgent):
    """A stochastic policy and a value function.

    Attributes:
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: standardize advantages over each trajectory.
        policy_loss_clip: bound of the absolute policy loss; a loss beyond the bound is clipped and has no gradient.
            ``None`` disables clipping.
        value_loss_clip: upper bound of the value loss; larger losses have no gradient. ``None`` disables clipping.
    """

    value_coefficient: Annotated[float, Within("[0, inf)")] = 0.5
    entropy_coefficient: float | Schedule = 0.0
    normalize_advantages: bool = False
    policy_loss_clip: Annotated[float | None, Within("(0, inf)")] = None
    value_loss_clip: Annotated[float | None, Within("(0, inf)")] = None

    def loss(
        self, params: Params, agent_state: AgentState, batch: ActorCriticBatch, progress: jax.Array
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return ``mean(-log pi(a|s) A) + c_v mean((V(s) - G)^2) - c_e entropy`` (section 4), and metrics.

        ``batch`` is ``[T, B]``; ``c_v``, ``c_e`` are coefficients. The first two means are clipped if a bound is set.
        """
        policy, values, *_ = self.estimates_of_batch(agent_state, params, batch)
        policy_losses = policy_gradient(policy.log_prob(batch.raw_actions), batch.advantages)
        policy_loss = _clipped_mean(policy_losses, self.policy_loss_clip)
        value_loss = _clipped_mean(squared_error(values, batch.targets), self.value_loss_clip)
        entropy = policy.entropy().mean()
        entropy_coefficient = value_at(self.entropy_coefficient, progress)
        loss = policy_loss + self.value_coefficient * value_loss - entropy_coefficient * entropy
        return loss, PyTreeDict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)


def _clipped_mean(losses: jax.Array, bound: float | None) -> jax.Array:
    """Return this device's mean loss; if the mean over devices exceeds ``bound``, a constant, whose gradient is 0."""
    if bound is None:
        return losses.mean()
    mean = collectives.mean_over_shares(jax.lax.stop_gradient(losses.mean()))
    return jnp.where(jnp.abs(mean) <= bound, losses.mean(), jnp.clip(mean, -bound, bound))


class A2CWorkflow(ActorCriticWorkflow):
    """A2C: one gradient step on each trajectory.

    Attributes:
        gae_lambda: lambda of generalized advantage estimation (GAE); 1 gives the bootstrapped returns of the paper.
    """

    agent: A2CAgent
    total_timesteps: float = 5e5
    rollout_length: int = 8
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(7e-4, 0.0), max_grad_norm=0.5, epsilon=1e-5)
    gae_lambda: Annotated[float, Within("[0, 1]")] = 1.0

    default_num_envs: ClassVar[int] = 8

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        batch = self.agent.batch_with_advantages(agent_state, trajectory, self.discount, self.gae_lambda)
        if self.agent.normalize_advantages:
            batch = batch.with_standardized_advantages()
        inputs = (agent_state, opt_state, batch, progress)
        state, opt_state, metrics = update_params(self.agent.loss, self.step_optimizer, *inputs, progress=progress)
        return state, opt_state, metrics | {"explained_variance": explained_variance(batch.values, batch.targets)}
