"""The agent that value-based algorithms share: values of discrete actions, and exploration by chance.

An algorithm adds its loss and the numbers in it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import ActionValueSettings
from evorl.envs.env import Env
from evorl.envs.space import ActionSpaces, Space, num_outputs
from evorl.networks.heads import apply_network
from evorl.networks.q_networks import QNetwork
from evorl.networks.torsos import build_torso
from evorl.ops.exploration import epsilon_greedy
from evorl.ops.random import split_rows
from evorl.ops.schedules import Schedule, value_at
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class ActionValueAgent(Agent):
    """Values of discrete actions; acts greedily but for a share of random actions.

    Attributes:
        network: values ``[..., A]`` of an observation.
        epsilon: probability of acting at random.
        obs_key: the entry of a dict observation that the network sees.
    """

    network: nn.Module = pytree_field(static=True)
    epsilon: float | Schedule = Schedule(1.0, 0.05, share=0.2)
    obs_key: str | None = None

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE
    part_settings: ClassVar[PyTreeNode] = ActionValueSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The network that ``network`` in the settings describes."""
        return {"network": cls.build_network(settings, env)}

    @classmethod
    def build_network(cls, settings: dict[str, Any], env: Env, **heads: Any) -> QNetwork:
        """The network that ``network`` in the settings describes, with ``heads``, further options of ``QNetwork``.

        Raises:
            ValueError: a description makes no sense, in words.
        """
        return QNetwork(
            build_torso(settings.pop("network")),
            num_outputs(env.action_space),
            observation_ndim(env.obs_space, settings.get("obs_key")),
            **heads,
        )

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> Params:
        """A fresh network."""
        return self.network.init(key, one_observation(obs_space, self.obs_key))

    def outputs(self, agent_state: AgentState, params: Params, obs: Observation, key: Key | None = None) -> jax.Array:
        """What the network gives; a noisy one has no noise without a key."""
        obs = preprocess(agent_state, obs, self.obs_key)
        return apply_network(self.network, params, obs, None, key if self.network.noisy else None)

    def q_values(self, agent_state: AgentState, params: Params, obs: Observation, key: Key | None = None) -> jax.Array:
        """Expected returns of all actions, also of forbidden ones, ``[..., A]``; without a key there is no noise."""
        return self.outputs(agent_state, params, obs, key)

    def acting_params(self, params: Params) -> Params:
        """Those of ``params`` that the network acts with."""
        return params

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """The state that acts at this point of the training: with its epsilon."""
        return agent_state.replace(extra_state=value_at(self.epsilon, progress))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Epsilon-greedy actions, of a noisy network with noise of its own for every row."""
        noise_key, action_key = split_rows(key)
        obs = sample_batch.obs
        q_values = self.q_values(agent_state, self.acting_params(agent_state.params), obs, noise_key)
        epsilon = value_at(self.epsilon, 0.0) if agent_state.extra_state is None else agent_state.extra_state
        return epsilon_greedy(action_key, allowed_only(q_values, obs), epsilon), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The actions of the greatest expected return."""
        q_values = self.q_values(agent_state, self.acting_params(agent_state.params), sample_batch.obs)
        return jnp.argmax(allowed_only(q_values, sample_batch.obs), axis=-1).astype(jnp.int32), PyTreeDict()


def values_of_actions(outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """Of ``[N, A]`` or ``[N, A, M]`` the entries of the actions ``[N]``."""
    return outputs[jnp.arange(actions.shape[0]), actions]


def values_of_actions_along(values: jax.Array, actions: jax.Array) -> jax.Array:
    """Of ``[T, N, A]`` the entries of the actions ``[T, N]``."""
    return jnp.take_along_axis(values, actions[..., None], axis=-1)[..., 0]
