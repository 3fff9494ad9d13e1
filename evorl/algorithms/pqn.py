"""Parallelized Q-network (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning",
https://arxiv.org/abs/2407.04811).

Q-learning without a replay buffer and without a target network: many parallel environments decorrelate the data, layer
normalization keeps temporal-difference learning stable, and targets are Q(lambda) returns over each trajectory.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax

from evorl.agent import AgentState, update_params
from evorl.agents.action_value import ActionValueAgent, values_of_actions
from evorl.agents.observations import allowed_only
from evorl.agents.part_settings import NetworkSettings, TorsoSettings
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import squared_error
from evorl.ops.optimization import Optimizer
from evorl.ops.returns import lambda_return
from evorl.ops.schedules import Schedule
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode
from evorl.workflows.on_policy import Begin, OnPolicyWorkflow, ScheduleStep, learn_in_passes


class PQNAgent(ActionValueAgent):
    """Agent that learns values of discrete actions; its network should have layer normalization (the default)."""

    part_settings: ClassVar[PyTreeNode] = NetworkSettings(
        network=TorsoSettings(torso=(120, 84), activation="relu", layer_norm=True, orthogonal=False)
    )

    def batch_with_targets(
        self, agent_state: AgentState, trajectory: SampleBatch, discount: jax.Array | float, q_lambda: jax.Array | float
    ) -> SampleBatch:
        """Return the inputs of ``loss`` for a trajectory ``[T, B]``: observations, actions and ``extras.targets``.

        Targets are Peng's Q(lambda) returns (eq. 4 of the paper), with lambda 0 where an episode ends and discount 0 at
        a termination: ``G_t = r_t + discount [lambda G_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a)]``.
        """
        next_values = self.q_values(agent_state, agent_state.params, trajectory.next_obs)
        next_values = allowed_only(next_values, trajectory.next_obs).max(axis=-1)
        termination = trajectory.extras.env_extras.termination
        targets = lambda_return(trajectory.rewards, next_values, termination, trajectory.dones, discount, q_lambda)
        return SampleBatch(obs=trajectory.obs, actions=trajectory.actions, extras=PyTreeDict(targets=targets))

    def loss(self, params: Params, agent_state: AgentState, batch: SampleBatch) -> tuple[jax.Array, PyTreeDict]:
        """Return half the mean squared error to the targets of a minibatch ``[N, ...]`` (algorithm 1), and metrics."""
        chosen = values_of_actions(self.q_values(agent_state, params, batch.obs), batch.actions)
        loss = 0.5 * squared_error(chosen, batch.extras.targets).mean()
        return loss, PyTreeDict(td_loss=loss, q_value=chosen.mean())


class PQNWorkflow(OnPolicyWorkflow):
    """PQN: computes targets once per trajectory, then trains for several epochs of minibatches.

    Attributes:
        q_lambda: lambda of the Q(lambda) returns: 0 gives one-step targets, 1 returns over the whole trajectory.
        num_epochs: number of passes (epochs) over each trajectory.
        num_minibatches: number of minibatches per epoch.
        schedule_step: schedules of optimizer and loss advance once per trajectory (``environment``) or with every
            gradient step (``update``); in both cases they span the whole training run.
    """

    agent: PQNAgent
    total_timesteps: float = 3e5
    rollout_length: int = 32
    optimizer: Optimizer = Optimizer(name="radam", learning_rate=Schedule(5e-4, 0.0), max_grad_norm=10.0)
    q_lambda: Annotated[float, Within("[0, 1]")] = 0.95
    num_epochs: int = 4
    num_minibatches: int = 8
    schedule_step: ScheduleStep = "environment"

    default_num_envs: ClassVar[int] = 32
    # True if minibatches consist of whole trajectories.
    by_trajectory: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_equal_minibatches(self.num_minibatches, self.by_trajectory)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        batch, key = self.batch_of(agent_state, trajectory, key, progress)
        batch = collectives.gather_rows(batch, axis=1)
        batch, begin = batch if self.by_trajectory else batch.flatten(), Begin(key, progress, self.by_trajectory)
        return learn_in_passes(self, self.update_from, agent_state, opt_state, batch, begin)

    def batch_of(
        self, agent_state: AgentState, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[SampleBatch, Key]:
        """Return the inputs of the losses for a trajectory ``[T, B]``, and the key that shuffles minibatches."""
        return self.agent.batch_with_targets(agent_state, trajectory, self.discount, self.q_lambda), key

    def update_from(
        self, agent_state: AgentState, opt_state: Any, minibatch: SampleBatch, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Update the parameters once; return the states of agent and optimizer, and the losses."""
        return update_params(self.agent.loss, self.optimizer, agent_state, opt_state, minibatch, progress=progress)
