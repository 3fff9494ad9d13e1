"""R2D2: recurrent replay (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX).

Q-learning with a memory. Replayed are sequences, each from the memory that was stored with its first step; the first
steps of a sequence only bring that memory up to date ("burn-in"), the others are learned from. Double (van Hasselt et
al. 2016), dueling (Wang et al. 2016), n-step and prioritized (Schaul et al. 2016) as in the paper, without its actors
on many machines and without actions and rewards among the observations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, observation_ndim, preprocess
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.networks import MemoryNetwork, QNetwork, assemble, build_cell, build_torso, select_observation
from evorl.networks.torsos import build_layers
from evorl.ops.exploration import epsilon_greedy
from evorl.ops.normalization import init_statistics
from evorl.ops.optimization import Optimizer
from evorl.ops.returns import n_step_return
from evorl.ops.schedules import Schedule
from evorl.ops.value_rescaling import rescale, undo_rescale
from evorl.replay_buffers import PrioritizedSequenceReplayBuffer, ReplayState, SequenceReplayBuffer, take_sequences
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, State, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.settings import check_names, checked_mapping, checked_value, require_positive
from evorl.workflows.target_network import init_online_optimizer, update_online_and_target


class R2D2Agent(Agent):
    """Action values of discrete actions that depend on the episode so far, with a slow copy.

    Attributes:
        network: values ``[..., A]`` of an observation and what is remembered.
        double: whether the present network chooses the action whose value the slow copy gives.
        rescaling_epsilon: the constant in the squashed scale in which values are learned; ``None`` for the plain one.
        priority_mix: the paper's eta: a sequence's priority is this times its greatest absolute error, and the rest
            times their mean.
        epsilon: probability of acting at random, over the course of the training.
        normalize_obs: whether observations are normalised by running statistics.
        obs_key: the entry of a dict observation that the network sees.
    """

    network: MemoryNetwork = pytree_field(static=True)
    double: bool = True
    rescaling_epsilon: float | None = 1e-3
    priority_mix: float = 0.9
    epsilon: Schedule = Schedule(1.0, 0.05, share=0.2)
    normalize_obs: bool = False
    obs_key: str | None = None

    ranges: ClassVar[Mapping[str, str]] = {"rescaling_epsilon": "(0, inf)", "priority_mix": "[0, 1]"}

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The network that ``network`` in the settings describes."""
        space = env.action_space
        if not isinstance(space, Discrete):
            raise ValueError(f"R2D2 acts in Discrete spaces, and this environment's action space is {space!r}.")
        options = dict(settings.pop("network", {}))
        cell = build_cell(options.pop("memory", "lstm"))
        if cell is None:
            raise ValueError(
                "R2D2 learns to remember, and agent.network.memory is null: choose gru, lstm or dilated_lstm, or DQN "
                "for an agent without a memory."
            )
        heads = checked_mapping(options.pop("heads", {}), "agent.network.heads")
        check_names(heads, ("dueling", "layers"), "key of agent.network.heads")
        dueling = checked_value(heads.get("dueling", False), bool, "agent.network.heads.dueling")
        layers = build_layers(heads.get("layers", ()), "agent.network.heads.layers")

        def head(torso: nn.Module, ndim: int) -> nn.Module:
            return QNetwork(torso, space.n, ndim, dueling=dueling)

        torso = build_torso(options, torso=(64,), activation="relu")
        return {
            "network": assemble(torso, cell, layers, head, observation_ndim(env.obs_space, settings.get("obs_key")))
        }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """A fresh network; the slow one starts as a copy."""
        obs = jax.tree.map(lambda x: x[None], obs_space.zeros())
        online = self.network.init(key, select_observation(obs, self.obs_key), self.network.initial_state((1,)))
        params = PyTreeDict(online=online, target=jax.tree.map(jnp.copy, online))
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=params, obs_preprocessor_state=statistics, memory=self.network.initial_state())

    def q_values(self, agent_state: AgentState, params: Params, obs: Observation, memory: Any) -> tuple[jax.Array, Any]:
        """Values of all actions ``[..., A]``, and what is remembered after the observations ``[..., *observation]``."""
        values, memory = self.network.apply(params, preprocess(agent_state, obs, self.obs_key), memory)
        return values, memory

    def q_values_along(
        self, agent_state: AgentState, params: Params, obs: Observation, memory: Any, starts: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The same along sequences ``[T, B]`` that begin with ``memory`` ``[B, *]``; see ``MemoryNetwork.unroll``."""
        obs = preprocess(agent_state, obs, self.obs_key)
        values, memories = self.network.apply(params, obs, memory, starts, method="unroll")
        return values, memories

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """The state that acts at this point of the training: with its epsilon."""
        return agent_state.replace(extra_state=self.epsilon.value(progress))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Epsilon-greedy actions."""
        memory = sample_batch.extras.memory
        q_values, memory = self.q_values(agent_state, agent_state.params.online, sample_batch.obs, memory)
        epsilon = self.epsilon.start if agent_state.extra_state is None else agent_state.extra_state
        return epsilon_greedy(key, q_values, epsilon), PyTreeDict(memory=memory)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The actions of the greatest value."""
        memory = sample_batch.extras.memory
        q_values, memory = self.q_values(agent_state, agent_state.params.online, sample_batch.obs, memory)
        return jnp.argmax(q_values, axis=-1).astype(jnp.int32), PyTreeDict(memory=memory)

    def _values_after_burn_in(
        self, agent_state: AgentState, params: Params, batch: SampleBatch, burn_in: int
    ) -> tuple[jax.Array, jax.Array]:
        """Values of the observations and of their true successors, ``[T - burn_in, N, A]`` each (section 3)."""
        memory, starts = batch.extras.memory, batch.extras.starts
        if burn_in:
            early = jax.tree.map(lambda x: x[:burn_in], batch.obs)
            _, memories = self.q_values_along(agent_state, params, early, memory, starts[:burn_in])
            memory = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], memories))
        obs, next_obs = jax.tree.map(lambda x: x[burn_in:], (batch.obs, batch.next_obs))
        values, memories = self.q_values_along(agent_state, params, obs, memory, starts[burn_in:])
        return values, self.q_values(agent_state, params, next_obs, memories)[0]

    def loss(
        self,
        params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        burn_in: int,
        n_step: int,
        discount: jax.Array | float,
    ) -> tuple[jax.Array, PyTreeDict]:
        """The temporal-difference loss of sequences ``[N, T, ...]`` (section 2.3); a truncated step bootstraps."""
        batch = _with_swapped_axes(batch)
        values, next_values = self._values_after_burn_in(agent_state, params, batch, burn_in)
        _, slow_values = self._values_after_burn_in(agent_state, agent_state.params.target, batch, burn_in)
        next_actions = jnp.argmax(next_values if self.double else slow_values, axis=-1)
        next_chosen = _of_actions(slow_values, next_actions)
        if self.rescaling_epsilon is not None:
            next_chosen = undo_rescale(next_chosen, self.rescaling_epsilon)
        rewards, ends = batch.rewards[burn_in:], (batch.extras.termination[burn_in:], batch.dones[burn_in:])
        targets = n_step_return(rewards, next_chosen, *ends, discount, n_step)
        if self.rescaling_epsilon is not None:
            targets = rescale(targets, self.rescaling_epsilon)
        chosen = _of_actions(values, batch.actions[burn_in:])
        errors = jax.lax.stop_gradient(targets) - chosen  # [T - burn_in, N]
        loss = (batch.extras.weights * 0.5 * jnp.square(errors).mean(axis=0)).mean()
        magnitudes = jnp.abs(errors)
        priorities = self.priority_mix * magnitudes.max(axis=0) + (1.0 - self.priority_mix) * magnitudes.mean(axis=0)
        return loss, PyTreeDict(td_loss=loss, q_value=chosen.mean(), td_errors=priorities)


class R2D2Workflow(OffPolicyWorkflow):
    """R2D2: a gradient step on each batch of sequences; the slow network follows in jumps or slowly.

    A batch has ``batch_size`` sequences. Nothing is learned before there is a whole one.

    Attributes:
        optimizer: of the network.
        target_update_interval: updates between two of the slow network.
        tau: share of the present network in the slow one after such an update; 1 copies.
        burn_in: first steps of a sequence, which only bring the memory up to date; ``None`` for none.
        sequence_length: the steps after them, which are learned from.
        sequence_period: steps of an environment from the start of one sequence to that of the next.
    """

    agent: R2D2Agent
    optimizer: Optimizer = Optimizer()
    target_update_interval: int = 500
    tau: float = 1.0
    burn_in: int | None = 40
    sequence_length: int = 80
    sequence_period: int = 40

    ranges: ClassVar[Mapping[str, str]] = {"tau": "[0, 1]"}
    loss_names: ClassVar[tuple[str, ...]] = ("td_loss", "q_value")
    stores_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "sequence_length", "sequence_period")
        super().__post_init__()

    @property
    def replay_buffer(self) -> SequenceReplayBuffer:
        """Where steps are kept, drawn as starts of sequences."""
        size = {"capacity": self.replay_capacity, "num_envs": self.num_stored_envs}
        sequences = {"length": (self.burn_in or 0) + self.sequence_length, "period": self.sequence_period}
        if self.prioritized:
            return PrioritizedSequenceReplayBuffer(**size, **sequences, exponent=self.priority_exponent)
        return SequenceReplayBuffer(**size, **sequences)

    def take(self, replay_state: ReplayState, rows: jax.Array, envs: jax.Array) -> SampleBatch:
        """Sequences ``[M, T, ...]``."""
        length = self.replay_buffer.length
        return _with_swapped_axes(take_sequences(replay_state, rows, envs, self.num_stored_envs, length))

    def _num_updates(self, state: State) -> jax.Array:
        has_sequences = self.replay_buffer.num_choices(state.replay_state) > 0
        return jnp.where(has_sequences, super()._num_updates(state), 0)

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """The optimizer's state, and a count of the updates."""
        return init_online_optimizer(self.optimizer, agent_state)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """One update of the network, and of the slow one if it is due."""
        return update_online_and_target(
            functools.partial(self.agent.loss, burn_in=self.burn_in or 0, n_step=self.n_step, discount=self.discount),
            self.optimizer,
            agent_state,
            opt_state,
            batch,
            progress=progress,
            tau=self.tau,
            interval=self.target_update_interval,
        )


def _with_swapped_axes(batch: SampleBatch) -> SampleBatch:
    """Sequences ``[T, N, ...]`` for ``[N, T, ...]``, or the other way round; what has one row for each stays."""
    one_each = {name: x for name, x in batch.extras.items() if name in ("memory", "weights")}
    others = PyTreeDict({name: x for name, x in batch.extras.items() if name not in one_each})
    swapped = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch.replace(extras=others))
    return swapped.replace(extras=swapped.extras | one_each)


def _of_actions(values: jax.Array, actions: jax.Array) -> jax.Array:
    """Of ``[T, N, A]`` the entries of the actions ``[T, N]``."""
    return jnp.take_along_axis(values, actions[..., None], axis=-1)[..., 0]
