"""R2D2: recurrent replay (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX).

Q-learning with a recurrent network on replayed sequences. A sequence starts from the recurrent state that was stored
with its first step. The first steps only update that state ("burn-in"); the loss covers the remaining steps. Double
Q-learning, dueling heads, n-step returns and prioritized replay are as in the paper; the actors are not distributed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents import action_value
from evorl.agents.recurrent_value import RecurrentValueAgent
from evorl.config.values import require_positive
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.ops.optimization import Optimizer
from evorl.ops.returns import n_step_return
from evorl.ops.schedules import Schedule
from evorl.ops.value_rescaling import rescale, undo_rescale
from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.sequence import (
    SequenceReplayBuffer,
    sequence_buffer,
    sequence_priorities,
    take_sequences,
    with_swapped_axes,
)
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow


class R2D2Agent(RecurrentValueAgent):
    """Agent that learns recurrent values of discrete actions, with a target network.

    Attributes:
        double: select the bootstrap action with the online instead of the target network (double Q-learning).
        rescaling_epsilon: epsilon of the rescaling of values, see ``evorl.ops.value_rescaling``; ``None`` disables it.
        priority_mix: weight eta of the maximum absolute TD error in a sequence's priority; the mean has weight 1 - eta.
    """

    double: bool = True
    rescaling_epsilon: Annotated[float | None, Within("(0, inf)")] = 1e-3
    priority_mix: Annotated[float, Within("[0, 1]")] = 0.9

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Initialize the online network; the target network starts as a copy."""
        online = super().init_params(obs_space, action_space, key)
        return PyTreeDict(online=online, target=jax.tree.map(jnp.copy, online))

    def acting_params(self, params: Params) -> Params:
        return params.online

    def loss(
        self,
        params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        burn_in: int,
        n_step: int,
        discount: jax.Array | float,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return loss and metrics of sequences ``[N, T, ...]`` after burn-in (section 2.3); truncations bootstrap."""
        batch = with_swapped_axes(batch)
        values, next_values = self.values_after_burn_in(agent_state, params, batch, burn_in)
        _, target_values = self.values_after_burn_in(agent_state, agent_state.params.target, batch, burn_in)
        next_actions = jnp.argmax(next_values if self.double else target_values, axis=-1)
        next_chosen = action_value.values_of_actions_along(target_values, next_actions)
        if self.rescaling_epsilon is not None:
            next_chosen = undo_rescale(next_chosen, self.rescaling_epsilon)
        rewards, ends = batch.rewards[burn_in:], (batch.extras.termination[burn_in:], batch.dones[burn_in:])
        targets = n_step_return(rewards, next_chosen, *ends, discount, n_step)
        if self.rescaling_epsilon is not None:
            targets = rescale(targets, self.rescaling_epsilon)
        chosen = action_value.values_of_actions_along(values, batch.actions[burn_in:])
        errors = jax.lax.stop_gradient(targets) - chosen  # [T - burn_in, N]
        loss = (batch.extras.weights * 0.5 * jnp.square(errors).mean(axis=0)).mean()
        priorities = sequence_priorities(errors, self.priority_mix)
        return loss, PyTreeDict(td_loss=loss, q_value=chosen.mean(), td_errors=priorities)


class R2D2Workflow(OffPolicyWorkflow):
    """R2D2: one gradient step per batch of sequences, with periodic (hard or Polyak) updates of the target network.

    A batch has ``batch_size`` sequences. Updates start after ``learning_starts`` steps, once a sequence is stored.

    Attributes:
        optimizer: optimizer of the network.
        target_update_interval: number of gradient steps between two updates of the target network.
        tau: Polyak step size of a target update; 1 copies the online network.
        burn_in: number of initial steps of a sequence that only update the recurrent state; ``None`` means 0.
        sequence_length: number of steps covered by the loss, after the burn-in.
        sequence_period: steps of an environment between the starts of consecutive sequences.
    """

    agent: R2D2Agent
    total_timesteps: float = 3e5
    rollout_length: int = 8
    updates_per_iteration: float = pytree_field(static=True, default=2)
    batch_size: int = 32
    n_step: int = 5
    prioritized: bool = True
    priority_exponent: float = 0.9
    importance_exponent: float | Schedule = 0.6
    learning_starts: float = 2000.0
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(1e-3, 0.0), max_grad_norm=10.0, epsilon=1e-5)
    target_update_interval: int = 200
    tau: Annotated[float, Within("[0, 1]")] = 1.0
    burn_in: int | None = 10
    sequence_length: int = 20
    sequence_period: int = 10

    default_num_envs: ClassVar[int] = 8
    loss_names: ClassVar[tuple[str, ...]] = ("td_loss", "q_value")
    stores_recurrent_state: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "sequence_length", "sequence_period")
        super().__post_init__()

    @property
    def replay_buffer(self) -> SequenceReplayBuffer:
        return sequence_buffer(self)

    def take(self, replay_state: ReplayState, rows: jax.Array, envs: jax.Array) -> SampleBatch:
        """Return the sequences ``[M, T, ...]`` that start at ``rows`` ``[M]`` of environments ``envs`` ``[M]``."""
        length = self.replay_buffer.length
        return with_swapped_axes(take_sequences(replay_state, rows, envs, self.num_stored_envs, length))

    def init_optimizers(self, agent_state: AgentState) -> Any:
        return action_value.init_online_optimizer(self.optimizer, agent_state)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        step = {"progress": progress, "tau": self.tau, "interval": self.target_update_interval}
        inputs = (agent_state, opt_state, batch, self.burn_in or 0, self.n_step, self.discount)
        return action_value.update_online_and_target(self.agent.loss, self.optimizer, *inputs, **step)
