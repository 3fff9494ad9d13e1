"""REINFORCE (Williams 1992, https://doi.org/10.1007/BF00992696; Sutton & Barto 2018, sections 13.3 and 13.4).

A policy gradient with sampled (Monte Carlo) returns, minus a learned baseline if there is one. The losses of policy and
baseline cover only steps of episodes that ended within the trajectory; the entropy bonus covers all steps.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, update_params
from evorl.agents.actor_critic import ActorCriticAgent, ActorCriticBatch
from evorl.agents.part_settings import ActorCriticSettings
from evorl.envs.env import Env
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import policy_gradient, squared_error
from evorl.ops.optimization import Optimizer, standardize
from evorl.ops.returns import discounted_return
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode
from evorl.workflows.on_policy import ActorCriticWorkflow


class ReinforceSettings(ActorCriticSettings):
    """Network settings of a REINFORCE agent.

    Attributes:
        baseline: learn a value function and subtract it from the returns.
    """

    baseline: bool = True


class ReinforceAgent(ActorCriticAgent):
    """A stochastic policy, and optionally a value function as baseline.

    Attributes:
        value_coefficient: weight of the baseline's loss.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: standardize advantages (returns minus the baseline) over each trajectory.
    """

    value_coefficient: Annotated[float, Within("[0, inf)")] = 0.5
    entropy_coefficient: float = 0.0
    normalize_advantages: bool = True

    part_settings: ClassVar[PyTreeNode] = ReinforceSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the actor-critic network; without a value network if the setting ``baseline`` is false."""
        baseline = settings.pop("baseline")
        parts = super().parts(settings, env)
        return parts if baseline else parts | {"network": parts["network"].clone(value=None)}

    def batch_with_returns(
        self, agent_state: AgentState, trajectory: SampleBatch, discount: jax.Array | float
    ) -> ActorCriticBatch:
        """Return the batch of a trajectory ``[T, B]``: targets are sampled returns, advantages subtract the baseline.

        Weights are 0 for steps of episodes that did not end within the trajectory, and otherwise equal, with mean 1.
        With a baseline, truncated episodes bootstrap from the value of their last observation.
        """
        rewards, values = trajectory.rewards, 0.0
        if self.network.value is not None:
            estimates, next_values = self.estimates_of_trajectory(agent_state, agent_state.params, trajectory)
            truncated = trajectory.dones.astype(bool) & ~trajectory.extras.env_extras.termination.astype(bool)
            rewards = rewards + discount * jnp.where(truncated, next_values, 0.0)
            values = estimates.values
        returns = discounted_return(rewards, trajectory.dones, discount)
        ended = jax.lax.cummax(trajectory.dones.astype(jnp.float32), axis=0, reverse=True)
        share = collectives.mean_over_shares(ended.mean())
        weights = ended / jnp.where(share > 0.0, share, 1.0)
        advantages = standardize(returns - values, weights) if self.normalize_advantages else returns - values
        return self.batch_of(trajectory, advantages=advantages, targets=returns, weights=weights)

    def loss(self, params: Params, agent_state: AgentState, batch: ActorCriticBatch) -> tuple[jax.Array, PyTreeDict]:
        """Return ``mean(-w A log pi(a|s)) + c_v mean(w (b(s) - G)^2) - c_e entropy`` with weights w, and metrics."""
        policy, values, *_ = self.estimates_of_batch(agent_state, params, batch)
        log_prob = policy.log_prob(batch.raw_actions)
        policy_loss = (batch.weights * policy_gradient(log_prob, batch.advantages)).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss - self.entropy_coefficient * entropy
        losses = PyTreeDict(policy_loss=policy_loss, entropy=entropy)
        if self.network.value is not None:
            losses.value_loss = (batch.weights * squared_error(values, batch.targets)).mean()
            loss += self.value_coefficient * losses.value_loss
        return loss, losses


class ReinforceWorkflow(ActorCriticWorkflow):
    """REINFORCE: one gradient step on the completed episodes of each trajectory."""

    agent: ReinforceAgent
    total_timesteps: float = 5e5
    rollout_length: int = 512
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(5e-3, 0.0))

    default_num_envs: ClassVar[int] = 4

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        batch = self.agent.batch_with_returns(agent_state, trajectory, self.discount)
        return update_params(self.agent.loss, self.step_optimizer, agent_state, opt_state, batch, progress=progress)
