"""R2D2: recurrent replay (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX).

Q-learning with a recurrent network. Replays sequences, each starting from the recurrent state that was stored with its
first step; the first steps only update that state ("burn-in"), the loss covers the others. As in the paper: double
Q-learning, dueling heads, n-step returns, prioritized replay; not: distributed actors, past actions as observations.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import AgentState
from evorl.agents import action_value
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import RecurrentValueSettings
from evorl.config.values import check_names, checked_mapping, checked_value, require_positive
from evorl.envs.action_spaces import num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.q_networks import QNetwork
from evorl.networks.recurrent import RecurrentNetwork, assemble, build_cell
from evorl.networks.torsos import build_layers, build_torso
from evorl.ops.exploration import epsilon_greedy
from evorl.ops.optimization import Optimizer
from evorl.ops.returns import n_step_return
from evorl.ops.schedules import Schedule, value_at
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
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow


class R2D2Agent(action_value.ActionValueAgent):
    """Recurrent action values of discrete actions, with a target network.

    Attributes:
        network: maps an observation and a recurrent state to values ``[..., A]`` and the next recurrent state.
        double: select the bootstrap action by the online network instead of the target network (double Q-learning).
        rescaling_epsilon: constant epsilon of the value rescaling; ``None`` disables rescaling.
        priority_mix: weight eta of the maximum absolute TD error in a sequence's priority; that of the mean is 1 - eta.
    """

    network: RecurrentNetwork = pytree_field(static=True)
    double: bool = True
    rescaling_epsilon: Annotated[float | None, Within("(0, inf)")] = 1e-3
    priority_mix: Annotated[float, Within("[0, 1]")] = 0.9

    part_settings: ClassVar[PyTreeNode] = RecurrentValueSettings()
    can_draw_epsilon: ClassVar[bool] = False  # recurrent_state holds the network's state only

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the network from ``network`` of the settings."""
        options = settings.pop("network")
        cell = build_cell(options.pop("recurrent"))
        if cell is None:
            raise ValueError("R2D2 needs agent.network.recurrent, but it is null: choose gru, lstm, min_gru or lru.")
        heads = checked_mapping(options.pop("heads"), "agent.network.heads")
        check_names(heads, ("dueling", "layers"), "key of agent.network.heads")
        dueling = checked_value(heads.get("dueling", True), bool, "agent.network.heads.dueling")
        layers = build_layers(heads.get("layers", ()), "agent.network.heads.layers")

        def head(torso: nn.Module, ndim: int) -> nn.Module:
            return QNetwork(torso, num_outputs(env.action_space), ndim, dueling=dueling)

        torso, axes = build_torso(options), observation_ndim(env.obs_space, settings.get("obs_key"))
        return {"network": assemble(torso, cell, layers, head, axes)}

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Initialize the online network; the target network starts as a copy."""
        online = self.network.init(key, one_observation(obs_space, self.obs_key), self.network.initial_state((1,)))
        return PyTreeDict(online=online, target=jax.tree.map(jnp.copy, online))

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the agent; ``recurrent_state`` is the network's state at the start of an episode."""
        return super().init(obs_space, action_space, key).replace(recurrent_state=self.network.initial_state())

    def q_values_and_state(
        self, agent_state: AgentState, params: Params, obs: Observation, recurrent_state: Any
    ) -> tuple[jax.Array, Any]:
        """Return the values ``[..., A]`` of all actions for observations ``[..., *observation]``, and the next state.

        Values of masked actions are ``-inf``, so that they are never selected.
        """
        values, next_state = self.network.apply(params, preprocess(agent_state, obs, self.obs_key), recurrent_state)
        return allowed_only(values, obs), next_state

    def q_values_along(
        self, agent_state: AgentState, params: Params, obs: Observation, recurrent_state: Any, starts: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return values, unmasked, and recurrent states along sequences ``[T, B]``; see ``RecurrentNetwork.unroll``."""
        obs = preprocess(agent_state, obs, self.obs_key)
        values, recurrent_states = self.network.apply(params, obs, recurrent_state, starts, method="unroll")
        return values, recurrent_states

    def _q_values_and_extras(
        self, agent_state: AgentState, sample_batch: SampleBatch
    ) -> tuple[jax.Array, PolicyExtras]:
        obs, recurrent_state = sample_batch.obs, sample_batch.extras.recurrent_state
        q_values, next_state = self.q_values_and_state(agent_state, agent_state.params.online, obs, recurrent_state)
        return q_values, PyTreeDict(recurrent_state=next_state)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return epsilon-greedy actions."""
        q_values, extras = self._q_values_and_extras(agent_state, sample_batch)
        epsilon = value_at(self.epsilon, 0.0) if agent_state.extra_state is None else agent_state.extra_state
        return epsilon_greedy(key, q_values, epsilon), extras

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the greedy actions."""
        q_values, extras = self._q_values_and_extras(agent_state, sample_batch)
        return jnp.argmax(q_values, axis=-1).astype(jnp.int32), extras

    def _values_after_burn_in(
        self, agent_state: AgentState, params: Params, batch: SampleBatch, burn_in: int
    ) -> tuple[jax.Array, jax.Array]:
        """Return the values of observations and of their true successors, each ``[T - burn_in, N, A]`` (section 3)."""
        obs, next_obs = (preprocess(agent_state, x, self.obs_key) for x in (batch.obs, batch.next_obs))
        memory = (batch.extras.recurrent_state, batch.extras.starts, burn_in)
        values: Any = self.network.apply(params, obs, next_obs, *memory, method="after_burn_in")
        return values[0], allowed_only(values[1], jax.tree.map(lambda x: x[burn_in:], batch.next_obs))

    def loss(
        self,
        params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        burn_in: int,
        n_step: int,
        discount: jax.Array | float,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the TD loss of sequences ``[N, T, ...]`` (section 2.3); truncated steps bootstrap."""
        batch = with_swapped_axes(batch)
        values, next_values = self._values_after_burn_in(agent_state, params, batch, burn_in)
        _, target_values = self._values_after_burn_in(agent_state, agent_state.params.target, batch, burn_in)
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

    A batch has ``batch_size`` sequences. Training starts when the replay buffer has a complete sequence.

    Attributes:
        optimizer: optimizer of the network.
        target_update_interval: gradient steps between two updates of the target network.
        tau: Polyak step size of an update of the target network; 1 copies.
        burn_in: number of first steps of a sequence that only update the recurrent state; ``None`` for 0.
        sequence_length: number of steps after the burn-in, which the loss covers.
        sequence_period: environment steps between the starts of two consecutive sequences of an environment.
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
        """Replay buffer of steps, which samples the starts of sequences."""
        return sequence_buffer(
            self.priority_exponent if self.prioritized else None,
            capacity=self.replay_capacity,
            num_envs=self.num_stored_envs,
            length=(self.burn_in or 0) + self.sequence_length,
            period=self.sequence_period,
        )

    def take(self, replay_state: ReplayState, rows: jax.Array, envs: jax.Array) -> SampleBatch:
        """Return the sequences ``[M, T, ...]`` that start at ``rows`` of ``envs``."""
        length = self.replay_buffer.length
        return with_swapped_axes(take_sequences(replay_state, rows, envs, self.num_stored_envs, length))

    def _num_updates(self, state: Any) -> jax.Array:
        has_sequences = self.replay_buffer.num_choices(state.replay_state) > 0
        return jnp.where(has_sequences, super()._num_updates(state), 0)

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """Return the optimizer's state and a count of the updates."""
        return action_value.init_online_optimizer(self.optimizer, agent_state)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Update the network once, and the target network if due."""
        return action_value.update_online_and_target(
            functools.partial(self.agent.loss, burn_in=self.burn_in or 0, n_step=self.n_step, discount=self.discount),
            self.optimizer,
            agent_state,
            opt_state,
            batch,
            progress=progress,
            tau=self.tau,
            interval=self.target_update_interval,
        )
