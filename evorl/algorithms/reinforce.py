"""REINFORCE (Williams 1992, https://doi.org/10.1007/BF00992696; Sutton & Barto 2018, sections 13.3 and 13.4).

The log-probability of every action is raised by the return that followed it, as it was sampled, less a baseline if one
is learned. Only steps whose episode has come to its end are learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.actor_critic import ActorCriticAgent
from evorl.agent import AgentState
from evorl.envs.env import Env
from evorl.ops import collectives
from evorl.ops.losses import policy_gradient, squared_error
from evorl.ops.optimization import gradient_step, standardize
from evorl.ops.returns import discounted_return
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.settings import require_positive


class ReinforceAgent(ActorCriticAgent):
    """A stochastic policy, and a value function as a baseline if wanted.

    Attributes:
        value_coefficient: weight of the baseline's loss.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: whether returns less the baseline are standardised over each trajectory.
    """

    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    normalize_advantages: bool = True

    ranges: ClassVar[Mapping[str, str]] = {"value_coefficient": "[0, inf)"}

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """As every actor-critic's, but that ``baseline: false`` in the settings leaves the value network out."""
        baseline = settings.pop("baseline", True)
        if not isinstance(baseline, bool):
            raise ValueError(f"agent.baseline must be true or false, got {baseline!r}.")
        parts = super().parts(settings, env)
        return parts if baseline else parts | {"value_network": None}

    def with_returns(
        self, agent_state: AgentState, trajectory: SampleBatch, discount: jax.Array | float
    ) -> SampleBatch:
        """What the loss needs of a trajectory ``[T, B]``.

        Beside what was remembered ``targets``, the sampled returns; ``advantages``; and ``weights`` of mean 1, which
        are 0 for steps whose episode goes on after the trajectory.

        With a baseline, the value of the last observation stands for what would have followed a time limit.
        """
        rewards, values = trajectory.rewards, 0.0
        if self.value_network is not None:
            estimates = self.estimates_along(agent_state, agent_state.params, trajectory)
            next_values = self.next_values(agent_state, agent_state.params, trajectory, estimates)
            truncated = trajectory.dones.astype(bool) & ~trajectory.extras.env_extras.termination.astype(bool)
            rewards = rewards + discount * jnp.where(truncated, next_values, 0.0)
            values = estimates.values
        returns = discounted_return(rewards, trajectory.dones, discount)
        ended = jax.lax.cummax(trajectory.dones.astype(jnp.float32), axis=0, reverse=True)
        share = collectives.mean_over_shares(ended.mean())
        weights = ended / jnp.where(share > 0.0, share, 1.0)
        advantages = standardize(returns - values, weights) if self.normalize_advantages else returns - values
        return self.remembered(trajectory, advantages=advantages, targets=returns, weights=weights)

    def loss(self, params: Params, agent_state: AgentState, batch: SampleBatch) -> tuple[jax.Array, PyTreeDict]:
        """``-log pi(a|s) (G - b(s))`` (eq. 13.11 of Sutton & Barto) and ``(b(s) - G)^2``, means over a batch."""
        remembered = batch.extras.policy_extras
        policy, values, _ = self.estimates_along(agent_state, params, batch)
        log_prob = policy.log_prob(remembered.raw_action)
        policy_loss = (remembered.weights * policy_gradient(log_prob, remembered.advantages)).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss - self.entropy_coefficient * entropy
        losses = PyTreeDict(policy_loss=policy_loss, entropy=entropy)
        if self.value_network is not None:
            errors = squared_error(values, remembered.targets)
            losses.value_loss = (remembered.weights * errors).mean()
            loss += self.value_coefficient * losses.value_loss
        return loss, losses


class ReinforceWorkflow(OnPolicyWorkflow):
    """REINFORCE: one gradient step on the finished episodes of each trajectory."""

    agent: ReinforceAgent

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length")

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """One step on a trajectory with its returns; the loss sees the statistics that acted."""
        batch = self.agent.with_returns(agent_state, trajectory, self.discount)
        params, opt_state, losses = gradient_step(
            self.agent.loss, self.optimizer, agent_state.params, opt_state, agent_state, batch, progress=progress
        )
        return agent_state.replace(params=params), opt_state, losses
