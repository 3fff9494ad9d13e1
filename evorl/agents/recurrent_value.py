"""Base agent of value-based algorithms with memory: recurrent values of discrete actions."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import AgentState
from evorl.agents.action_value import ActionValueAgent
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import RecurrentValueSettings
from evorl.config.values import check_names, checked_mapping, checked_value
from evorl.envs.action_spaces import num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.networks.q_networks import QNetwork
from evorl.networks.recurrent import RecurrentNetwork, assemble, build_cell
from evorl.networks.torsos import build_layers, build_torso
from evorl.ops.exploration import epsilon_greedy
from evorl.ops.schedules import value_at
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class RecurrentValueAgent(ActionValueAgent):
    """Agent that learns recurrent values of discrete actions and acts epsilon-greedily.

    Attributes:
        network: maps an observation and a recurrent state to values ``[..., A]`` and the next recurrent state.
    """

    network: RecurrentNetwork = pytree_field(static=True)

    part_settings: ClassVar[PyTreeNode] = RecurrentValueSettings()
    can_draw_epsilon: ClassVar[bool] = False  # recurrent_state contains only the network's state

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        options = settings.pop("network")
        cell = build_cell(options.pop("recurrent"))
        if cell is None:
            name = cls.__name__.removesuffix("Agent")
            raise ValueError(f"{name} needs agent.network.recurrent, but it is null: choose a cell, such as gru.")
        heads = checked_mapping(options.pop("heads"), "agent.network.heads")
        check_names(heads, ("dueling", "layers"), "key of agent.network.heads")
        dueling = checked_value(heads.get("dueling", True), bool, "agent.network.heads.dueling")
        layers = build_layers(heads.get("layers", ()), "agent.network.heads.layers")

        def head(torso: nn.Module, ndim: int) -> nn.Module:
            return QNetwork(torso, num_outputs(env.action_space), ndim, dueling=dueling)

        torso, axes = build_torso(options), observation_ndim(env.obs_space, settings.get("obs_key"))
        return {"network": assemble(torso, cell, layers, head, axes)}

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        return self.network.init(key, one_observation(obs_space, self.obs_key), self.network.initial_state((1,)))

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the agent; ``recurrent_state`` is the network's state at the start of an episode."""
        return super().init(obs_space, action_space, key).replace(recurrent_state=self.network.initial_state())

    def q_values_and_state(
        self, agent_state: AgentState, params: Params, obs: Observation, recurrent_state: Any
    ) -> tuple[jax.Array, Any]:
        """Return values ``[..., A]`` of all actions for ``obs``, ``[..., *observation]``, and the next recurrent state.

        Values of masked actions are ``-inf``, so that they are never selected.
        """
        values, next_state = self.network.apply(params, preprocess(agent_state, obs, self.obs_key), recurrent_state)
        return allowed_only(values, obs), next_state

    def _q_values_and_extras(
        self, agent_state: AgentState, sample_batch: SampleBatch
    ) -> tuple[jax.Array, PolicyExtras]:
        inputs = (self.acting_params(agent_state.params), sample_batch.obs, sample_batch.extras.recurrent_state)
        q_values, next_state = self.q_values_and_state(agent_state, *inputs)
        return q_values, PyTreeDict(recurrent_state=next_state)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return epsilon-greedy actions; the extras contain the next ``recurrent_state``."""
        q_values, extras = self._q_values_and_extras(agent_state, sample_batch)
        epsilon = value_at(self.epsilon, 0.0) if agent_state.extra_state is None else agent_state.extra_state
        return epsilon_greedy(key, q_values, epsilon), extras

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        q_values, extras = self._q_values_and_extras(agent_state, sample_batch)
        return jnp.argmax(q_values, axis=-1).astype(jnp.int32), extras

    def values_after_burn_in(
        self, agent_state: AgentState, params: Params, batch: SampleBatch, burn_in: int
    ) -> tuple[jax.Array, jax.Array]:
        """Return the values of ``obs`` and ``next_obs`` of a batch after the burn-in, each ``[T - burn_in, N, A]``.

        The first ``burn_in`` steps only update the recurrent state with the current parameters, without gradients
        (Kapturowski et al. 2019, section 3). In the values of ``next_obs``, masked actions have ``-inf``.

        Args:
            agent_state: state whose statistics normalize the observations.
            params: parameters of the network.
            batch: sequences ``[T, N, ...]``; ``extras`` has ``recurrent_state`` ``[N, *]`` before the first step and
                ``starts`` ``[T, N]``, True where an episode starts with that step.
            burn_in: number of initial steps without values.
        """
        obs, next_obs = (preprocess(agent_state, x, self.obs_key) for x in (batch.obs, batch.next_obs))
        memory = (batch.extras.recurrent_state, batch.extras.starts, burn_in)
        values: Any = self.network.apply(params, obs, next_obs, *memory, method="after_burn_in")
        return values[0], allowed_only(values[1], jax.tree.map(lambda x: x[burn_in:], batch.next_obs))
