"""IMPALA (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561): an actor-critic with off-policy correction.

Takes several gradient steps on each trajectory. From the second step on, the policy differs from the behavior policy;
V-trace corrects for the difference by clipped importance ratios. (In the paper the behavior policy lags because actors
and learner run asynchronously.)
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax

from evorl.agent import AgentState, update_params
from evorl.agents.actor_critic import ActorCriticAgent
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import explained_variance, policy_gradient, squared_error
from evorl.ops.optimization import Optimizer, standardize
from evorl.ops.returns import vtrace
from evorl.ops.schedules import Schedule, value_at
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.on_policy import ActorCriticWorkflow, Begin, ScheduleStep, learn_in_passes


class IMPALAAgent(ActorCriticAgent):
    """A stochastic policy and a value function.

    Attributes:
        vtrace_lambda: factor lambda of the trace coefficients c (remark on eq. 1 in the paper): 1 gives n-step targets,
            0 gives one-step targets.
        clip_rho: upper bound of importance ratios rho of temporal differences; determines which policy is evaluated.
        clip_c: upper bound of the trace coefficients c, which propagate later temporal differences back; determines the
            speed of convergence.
        clip_policy_rho: upper bound of the importance ratios in the policy gradient.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: standardize advantages in each minibatch.
    """

    vtrace_lambda: Annotated[float, Within("[0, 1]")] = 1.0
    clip_rho: Annotated[float, Within("(0, inf)")] = 1.0
    clip_c: Annotated[float, Within("(0, inf)")] = 1.0
    clip_policy_rho: Annotated[float, Within("(0, inf)")] = 1.0
    value_coefficient: Annotated[float, Within("[0, inf)")] = 0.5
    entropy_coefficient: float | Schedule = 0.0
    normalize_advantages: bool = False

    def loss(
        self,
        params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        discount: jax.Array | float,
        progress: jax.Array,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return loss and metrics of trajectories ``[T, B]``: policy + value loss - entropy bonus (section 4.2)."""
        (policy, values, *_), next_values = self.estimates_of_trajectory(agent_state, params, batch)
        log_prob = policy.log_prob(batch.extras.policy_extras.raw_action)
        targets = vtrace(
            batch.rewards,
            jax.lax.stop_gradient(values),
            jax.lax.stop_gradient(next_values),
            batch.extras.env_extras.termination,
            batch.dones,
            jax.lax.stop_gradient(log_prob) - batch.extras.policy_extras.log_prob,
            discount=discount,
            lambda_=self.vtrace_lambda,
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
            clip_pg_rho=self.clip_policy_rho,
        )
        advantages = standardize(targets.advantages) if self.normalize_advantages else targets.advantages
        policy_loss = policy_gradient(log_prob, advantages).mean()
        value_loss = squared_error(values, targets.value_targets).mean()
        entropy = policy.entropy().mean()
        entropy_coefficient = value_at(self.entropy_coefficient, progress)
        loss = policy_loss + self.value_coefficient * value_loss - entropy_coefficient * entropy
        return loss, PyTreeDict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            explained_variance=explained_variance(values, targets.value_targets),
        )


class IMPALAWorkflow(ActorCriticWorkflow):
    """IMPALA: several passes over each trajectory, in minibatches of environments.

    Attributes:
        num_epochs: number of passes (epochs) over each trajectory.
        num_minibatches: minibatches per epoch, each with the whole trajectories of some of the environments.
        schedule_step: schedules of optimizer and loss advance once per trajectory (``environment``) or with every
            gradient step (``update``); in both cases they span the whole training run.
    """

    agent: IMPALAAgent
    total_timesteps: float = 5e5
    rollout_length: int = 8
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(7e-4, 0.0), max_grad_norm=0.5, epsilon=1e-5)
    num_epochs: int = 2
    num_minibatches: int = 2
    schedule_step: ScheduleStep = "environment"

    default_num_envs: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_equal_minibatches(self.num_minibatches, by_trajectory=True)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Train for ``num_epochs`` on minibatches of whole trajectories."""

        def update(*states_and_minibatch: Any, progress: jax.Array) -> tuple[AgentState, Any, PyTreeDict]:
            inputs = (*states_and_minibatch, self.discount, progress)
            return update_params(self.agent.loss, self.step_optimizer, *inputs, progress=progress)

        trajectories, begin = collectives.gather_rows(trajectory, axis=1), Begin(key, progress, by_trajectory=True)
        return learn_in_passes(self, update, agent_state, opt_state, trajectories, begin)
