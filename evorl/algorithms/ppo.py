"""Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

A trajectory is learned from several times over; the probability ratio to the policy that collected it is clipped, so
that no update goes far from that policy. Advantages are estimated by GAE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent, ActorCriticBatch
from evorl.config.values import require_positive
from evorl.ops import collectives
from evorl.ops.losses import approximate_kl, clipped_surrogate, clipped_value_error, explained_variance, squared_error
from evorl.ops.optimization import Optimizer, gradient_step, scan_minibatches, scan_trajectories
from evorl.ops.schedules import Schedule, value_at
from evorl.ops.trees import polyak_update, tree_where
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.on_policy import OnPolicyWorkflow


class PPOAgent(ActorCriticAgent):
    """A stochastic policy and a value function.

    Attributes:
        clip_epsilon: the ratio counts within ``1 - clip_epsilon`` and ``1 + clip_epsilon``.
        value_clip_epsilon: values may move this far from those at collection; ``None`` for no limit.
        value_coefficient: weight of the value loss.
        value_l2: weight of the squared parameters of the value network in the loss; ``None`` for none.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: whether advantages are standardised in each minibatch.
    """

    clip_epsilon: float | Schedule = 0.2
    value_clip_epsilon: float | None = None
    value_coefficient: float = 0.5
    value_l2: float | None = None
    entropy_coefficient: float | Schedule = 0.0
    normalize_advantages: bool = True

    ranges: ClassVar[Mapping[str, str]] = {
        "clip_epsilon": "(0, inf)",
        "value_clip_epsilon": "(0, inf)",
        "value_coefficient": "[0, inf)",
        "value_l2": "[0, inf)",
    }

    def loss(
        self, params: Params, agent_state: AgentState, batch: ActorCriticBatch, progress: jax.Array
    ) -> tuple[jax.Array, PyTreeDict]:
        """Clipped surrogate, value error and entropy bonus of a minibatch (eq. 9 of the paper)."""
        policy, values, _ = self.estimates_of_batch(agent_state, params, batch)
        log_ratio = policy.log_prob(batch.raw_actions) - batch.log_probs
        clip_epsilon = value_at(self.clip_epsilon, progress)
        entropy_coefficient = value_at(self.entropy_coefficient, progress)
        policy_loss = clipped_surrogate(log_ratio, batch.advantages, clip_epsilon).mean()
        if self.value_clip_epsilon is None:
            value_loss = squared_error(values, batch.targets).mean()
        else:
            value_loss = clipped_value_error(values, batch.values, batch.targets, self.value_clip_epsilon).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss + self.value_coefficient * value_loss - entropy_coefficient * entropy
        if self.value_l2 is not None:
            loss += self.value_l2 * optax.tree.norm(params["value"], squared=True)
        return loss, PyTreeDict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            approximate_kl=approximate_kl(log_ratio).mean(),
            clip_fraction=(jnp.abs(jnp.expm1(log_ratio)) > clip_epsilon).mean(dtype=jnp.float32),
        )


class PPOWorkflow(OnPolicyWorkflow):
    """PPO: targets once per trajectory, then several epochs of minibatches.

    Attributes:
        gae_lambda: how far advantages look ahead before they trust the value function.
        value_learning_rate_scale: the value network (its head, where the rest is shared) moves by this multiple of the
            optimizer's step; ``None`` for 1.
        num_epochs: passes over each trajectory.
        num_minibatches: parts of each pass.
        whole_trajectories: minibatches are the whole trajectories of some of the environments, not single steps of any;
            those of a recurrent agent always are.
        target_kl: stop learning from a trajectory once the approximate KL divergence from the policy that collected it
            exceeds this; ``None`` never stops.
    """

    agent: PPOAgent
    total_timesteps: float = 2e5
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(3e-4, 0.0), max_grad_norm=0.5, epsilon=1e-5)
    gae_lambda: float = 0.95
    value_learning_rate_scale: float | None = None
    num_epochs: int = 4
    num_minibatches: int = 4
    whole_trajectories: bool = False
    target_kl: float | None = None

    default_num_envs: ClassVar[int] = 4
    ranges: ClassVar[Mapping[str, str]] = {
        "gae_lambda": "[0, 1]",
        "value_learning_rate_scale": "[0, inf)",
        "target_kl": "(0, inf)",
    }

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length", "num_epochs", "num_minibatches")
        self.require_equal_minibatches(self.num_minibatches, self._by_trajectory)

    @property
    def _by_trajectory(self) -> bool:
        return self.whole_trajectories or self.agent.is_recurrent

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Epochs of minibatches over a trajectory with its advantages; all losses see the statistics that acted."""
        batch = self.agent.batch_with_advantages(agent_state, trajectory, self.discount, self.gae_lambda)
        batch = collectives.gather_rows(batch, axis=1)
        carry = (agent_state.params, opt_state, jnp.bool_(True))

        def one_minibatch(carry: Any, minibatch: ActorCriticBatch) -> tuple[Any, PyTreeDict]:
            params, opt_state, is_near = carry
            if self.agent.normalize_advantages:
                minibatch = minibatch.with_standardized_advantages()
            new_params, new_opt_state, losses = gradient_step(
                self.agent.loss, self.optimizer, params, opt_state, agent_state, minibatch, progress, progress=progress
            )
            if self.value_learning_rate_scale is not None:
                value = polyak_update(params.value, new_params.value, self.value_learning_rate_scale)
                new_params = new_params.replace(value=value)
            if self.target_kl is None:
                return (new_params, new_opt_state, is_near), losses
            is_near &= collectives.mean_over_shares(losses.approximate_kl) <= self.target_kl
            params, opt_state = tree_where(is_near, (new_params, new_opt_state), (params, opt_state))
            return (params, opt_state, is_near), losses

        scan, rows = (scan_trajectories, batch) if self._by_trajectory else (scan_minibatches, batch.flatten())
        (params, opt_state, _), losses = scan(one_minibatch, carry, rows, key, self.num_epochs, self.num_minibatches)
        metrics = jax.tree.map(jnp.mean, losses)
        metrics.explained_variance = explained_variance(batch.values, batch.targets)
        return agent_state.replace(params=params), opt_state, metrics
