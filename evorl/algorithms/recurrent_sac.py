"""Recurrent soft actor-critic: SAC for partial observations, learned from sequences as in R2D2.

Policy and critics read the features of a shared memory, a recurrent network. Sequences are replayed from the recurrent
state that was stored with their first step; the first steps only update that state ("burn-in", Kapturowski et al. 2019,
https://openreview.net/forum?id=r1lyTjAqYX). Only the losses of the critics train the memory (as they train the encoder
of Yarats et al. 2021, https://arxiv.org/abs/1910.01741): in a shared memory, the gradients of policy and critics
interfere (Ni et al. 2022, https://arxiv.org/abs/2110.05038).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState, action_distribution
from evorl.agents.critic_ensemble import update_part
from evorl.agents.observations import observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import MemoryCriticSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.config.values import check_names, checked_mapping, require_positive
from evorl.envs.env import Env
from evorl.envs.space import ACTION_MASK, Box, Discrete, Space
from evorl.fields import Within
from evorl.networks.heads import FeatureNetwork, PolicyNetwork
from evorl.networks.q_networks import EnsembleQNetwork
from evorl.networks.recurrent import RecurrentNetwork, assemble, build_cell
from evorl.networks.torsos import build_layers, build_torso
from evorl.ops.random import split_rows
from evorl.ops.returns import n_step_return
from evorl.ops.trees import flatten_leading_axes
from evorl.replay_buffers import sequence
from evorl.replay_buffers.ring import ReplayState
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class RecurrentSACAgent(SACAgent):
    """A soft actor-critic whose networks read the features of a memory instead of observations.

    ``params.critic`` and ``params.target_critic`` have the entries ``memory`` and ``heads``.

    Attributes:
        memory: maps an observation and a recurrent state to features ``[..., F]`` and the next recurrent state.
        obs_key: entry of a dict observation that the memory reads; ``None`` for the whole observation.
        priority_mix: weight eta of the maximum absolute TD error in a sequence's priority; the mean has weight 1 - eta.
    """

    memory: RecurrentNetwork = pytree_field(static=True, kw_only=True)
    obs_key: str | None = pytree_field(static=True, default=None, kw_only=True)
    priority_mix: Annotated[float, Within("[0, 1]")] = pytree_field(default=0.9, kw_only=True)
    support_low: float = pytree_field(default=-10.0, kw_only=True, setting=False)
    support_high: float = pytree_field(default=10.0, kw_only=True, setting=False)

    improves_policies: ClassVar[bool] = False  # population policies read observations, not features
    part_settings: ClassVar[PyTreeNode] = MemoryCriticSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        for name in ("policy_obs_key", "value_obs_key"):
            if settings.get(name) is not None:
                raise ValueError(f"agent.{name} has no effect, because the heads read a memory: use agent.obs_key.")
        if (num_steps := settings["noise_repetition"]["max_steps"]) > 1:
            raise ValueError(f"agent.noise_repetition.max_steps must be 1 for a policy with memory, got {num_steps}.")
        options, distribution = settings.pop("network"), action_distribution(env.action_space)
        cell = build_cell(options.pop("recurrent"))
        if cell is None:
            raise ValueError("Recurrent SAC needs agent.network.recurrent, but it is null: choose gru, or agent=sac.")
        heads = checked_mapping(options.pop("heads"), "agent.network.heads")
        check_names(heads, ("policy", "value"), "key of agent.network.heads")
        torso = build_torso(options)
        layers = {name: build_layers(heads[name], f"agent.network.heads.{name}") for name in heads}
        policy, value = (torso.clone(layers=layers.get(name, ())) for name in ("policy", "value"))
        num_actions = env.action_space.n if isinstance(env.action_space, Discrete) else None
        axes = observation_ndim(env.obs_space, settings.get("obs_key"))
        return {
            "memory": assemble(torso, cell, (), FeatureNetwork, axes),
            "policy_network": PolicyNetwork(policy, distribution.num_parameters),
            "critic_network": EnsembleQNetwork(value, settings.pop("num_critics"), num_actions),
            "distribution": distribution,
        }

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Initialize memory, heads and temperature; the target networks start as copies."""
        heads_key, memory_key = jax.random.split(key)
        inputs = (one_observation(obs_space, self.obs_key), self.memory.initial_state((1,)))
        (features, _), memory = self.memory.init_with_output(memory_key, *inputs)
        params = super().init_params(Box(-jnp.inf, jnp.inf, features.shape[1:]), action_space, heads_key)
        critic = PyTreeDict(memory=memory, heads=params.critic)
        return params | {"critic": critic, "target_critic": jax.tree.map(jnp.copy, critic)}

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the agent; ``recurrent_state`` is the state of the memory at the start of an episode."""
        return super().init(obs_space, action_space, key).replace(recurrent_state=self.memory.initial_state())

    def recyclable_networks(self) -> dict[str, Any]:
        return {}  # the heads read features of the memory, which transitions do not contain

    def policy_outputs(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> jax.Array:
        """Return the outputs of the policy, ``[N, M]``, for features of the memory ``[N, F]``."""
        return super().policy_outputs(agent_state.replace(obs_preprocessor_state=None), policy_params, obs)

    def critics(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action | None, network: Any = None
    ) -> jax.Array:
        """Return the outputs of all critics, ``[K, N, *]``, for features of the memory ``[N, F]`` as ``obs``."""
        return super().critics(agent_state.replace(obs_preprocessor_state=None), params["heads"], obs, actions, network)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        policy, extras = self._policy_and_extras(agent_state, sample_batch)
        return policy.sample(key), extras

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        policy, extras = self._policy_and_extras(agent_state, sample_batch)
        return policy.mode(), extras

    def _policy_and_extras(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Any, PolicyExtras]:
        obs, params = sample_batch.obs, agent_state.params
        inputs = (preprocess(agent_state, obs, self.obs_key), sample_batch.extras.recurrent_state)
        features, after = self.memory.apply(params.critic.memory, *inputs)
        return self.policy(agent_state, params.policy, _with_mask(features, obs)), PyTreeDict(recurrent_state=after)

    def features(
        self, agent_state: AgentState, params: Params, batch: SampleBatch, burn_in: int
    ) -> tuple[Observation, Observation]:
        """Return the inputs of the heads for ``obs`` and for ``next_obs`` of time-major sequences ``[T, N]``.

        ``params`` belong to the critics or to their target networks. Both results are features of the steps after
        the burn-in, ``[(T - burn_in) * N, F]``, with the action masks of the observations, if any.
        """
        obs, next_obs = (preprocess(agent_state, x, self.obs_key) for x in (batch.obs, batch.next_obs))
        memory = (batch.extras.recurrent_state, batch.extras.starts, burn_in)
        features: Any = self.memory.apply(params["memory"], obs, next_obs, *memory, method="after_burn_in")
        seen = jax.tree.map(lambda x: x[burn_in:], (batch.obs, batch.next_obs))
        return flatten_leading_axes((_with_mask(features[0], seen[0]), _with_mask(features[1], seen[1])))

    def steps_for_policy(
        self, agent_state: AgentState, batch: SampleBatch, keys: Key, burn_in: int
    ) -> tuple[SampleBatch, Key]:
        """Return the inputs of ``actor_loss`` for sequences ``[N, T, ...]``: features as ``obs``, one key per step."""
        obs, _ = self.features(agent_state, agent_state.params.critic, sequence.with_swapped_axes(batch), burn_in)
        return SampleBatch(obs=obs), jnp.concatenate(split_rows(keys, batch.dones.shape[1] - burn_in))

    def sequence_loss(
        self,
        critic_params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        keys: Key,
        *,
        burn_in: int,
        n_step: int,
        discount: jax.Array | float,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the soft Bellman loss of critics and memory for sequences ``[N, T, ...]``, with one key per sequence.

        Target critics and target memory estimate the values of next steps, at actions that the policy chooses with the
        online memory; truncated episodes bootstrap. ``td_errors`` are the sequences' priorities, ``[K, N]``.
        """
        params, batch = agent_state.params, sequence.with_swapped_axes(batch)
        obs, next_obs = self.features(agent_state, critic_params, batch, burn_in)
        _, target_obs = self.features(agent_state, params.target_critic, batch, burn_in)
        rewards, actions, termination, dones = (
            x[burn_in:] for x in (batch.rewards, batch.actions, batch.extras.termination, batch.dones)
        )
        step_keys = jnp.concatenate(split_rows(keys, len(rewards)))
        policy = self.policy(agent_state, params.policy, next_obs)
        values, log_prob, _ = self.soft_values(policy, agent_state, params.target_critic, target_obs, step_keys)
        values = (values - self.alpha(params.log_temperature) * log_prob).reshape(rewards.shape)
        targets = n_step_return(rewards, values, termination, dones, discount, n_step).reshape(-1)
        outputs = self.critics(agent_state, critic_params, obs, flatten_leading_axes(actions))
        nothing, weights = jnp.zeros_like(targets), jnp.tile(batch.extras.weights, len(rewards))
        steps = SampleBatch(rewards=targets, extras=PyTreeDict(discounts=nothing, weights=weights))
        loss, losses = self.soft_bellman_loss(outputs, nothing, nothing, steps)
        errors = losses.td_errors.reshape(-1, *rewards.shape)  # [K, T - burn_in, N]
        return loss, losses | {"td_errors": sequence.sequence_priorities(errors, self.priority_mix, axis=1)}


class RecurrentSACWorkflow(SACWorkflow):
    """Recurrent SAC: updates as SAC does, from batches of ``batch_size`` sequences.

    Updates start after ``learning_starts`` steps, as soon as the replay buffer has a complete sequence.

    Attributes:
        burn_in: number of initial steps of a sequence that only update the recurrent state; ``None`` means 0.
        sequence_length: number of steps covered by the losses, after the burn-in.
        sequence_period: steps of an environment between the starts of consecutive sequences.
    """

    agent: RecurrentSACAgent
    batch_size: int = 32
    burn_in: int | None = 10
    sequence_length: int = 20
    sequence_period: int = 10

    stores_recurrent_state: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "sequence_length", "sequence_period")
        super().__post_init__()

    @property
    def replay_buffer(self) -> sequence.SequenceReplayBuffer:
        return sequence.sequence_buffer(self)

    def take(self, replay_state: ReplayState, rows: jax.Array, envs: jax.Array) -> SampleBatch:
        """Return the sequences ``[M, T, ...]`` that start at ``rows`` ``[M]`` of environments ``envs`` ``[M]``."""
        position = (rows, envs, self.num_stored_envs, self.replay_buffer.length)
        return sequence.with_swapped_axes(sequence.take_sequences(replay_state, *position))

    def update_critics(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update critics and memory once; return the states of the agent and the optimizers, and the metrics."""
        settings = {"burn_in": self.burn_in or 0, "n_step": self.n_step, "discount": self.discount}
        loss = functools.partial(self.agent.sequence_loss, **settings)
        step = {"loss_fn": loss, "optimizer": self.critic_optimizer, "progress": progress}
        return update_part("critic", agent_state, opt_state, agent_state, batch, keys, **step)

    def update_actor(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the policy once, using the updated critics and memory, then the temperature if it is adaptive."""
        steps, step_keys = self.agent.steps_for_policy(agent_state, batch, keys, self.burn_in or 0)
        return super().update_actor(agent_state, opt_state, steps, step_keys, progress)


def _with_mask(features: jax.Array, obs: Observation) -> Observation:
    """Return the features together with the action mask of the observation, if it has one."""
    if not isinstance(obs, Mapping) or ACTION_MASK not in obs:
        return features
    return PyTreeDict({"features": features, ACTION_MASK: obs[ACTION_MASK]})
