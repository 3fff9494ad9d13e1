"""A policy without critic or loss, for evolutionary methods."""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from evorl.agent import Agent, AgentState
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import NetworkSettings, TorsoSettings
from evorl.distributions import squash
from evorl.envs.action_spaces import bounded_dimensions, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.networks.heads import PolicyNetwork, apply_network
from evorl.networks.layers import dense_kernels
from evorl.networks.torsos import build_torso
from evorl.networks.virtual_batch import virtually_normalized
from evorl.ops.low_rank import explicit
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field


class PolicyAgent(Agent):
    """Deterministic policy: the argmax of the outputs (``Discrete``), or the outputs with tanh in bounded dimensions
    (``Box``).

    Attributes:
        policy_network: maps observations to outputs.
        discrete: true for discrete actions.
        bounded: for each dimension of a Box, True if actions are within [-1, 1]; empty if all are.
        policy_obs_key: entry of a dict observation that the policy reads; ``None`` for the whole observation.
    """

    policy_network: nn.Module = pytree_field(static=True)
    discrete: bool = pytree_field(default=False, setting=False)
    bounded: tuple[bool, ...] = pytree_field(static=True, default=(), setting=False)
    policy_obs_key: str | None = None

    part_settings: ClassVar[PyTreeNode] = NetworkSettings(TorsoSettings(torso=(16, 16), orthogonal=False))

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Return the network, built from the entry ``network``, and the fields ``discrete`` and ``bounded``."""
        space = env.action_space
        torso = build_torso(settings.pop("network"))
        ndim = observation_ndim(env.obs_space, settings.get("policy_obs_key"))
        return {
            "policy_network": PolicyNetwork(torso, num_outputs(space), ndim, output_scale=0.01),
            "discrete": isinstance(space, Discrete),
            "bounded": bounded_dimensions(space),
        }

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        return PyTreeDict(policy=self.policy_network.init(key, one_observation(obs_space, self.policy_obs_key)))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the policy's actions for ``sample_batch.obs``; deterministic, so ``key`` is unused."""
        obs = preprocess(agent_state, sample_batch.obs, self.policy_obs_key)
        outputs = apply_network(self.policy_network, agent_state.params.policy, obs)
        if self.discrete:
            return jnp.argmax(allowed_only(outputs, sample_batch.obs), axis=-1).astype(jnp.int32), PyTreeDict()
        return squash(outputs, self.bounded), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return self.compute_actions(agent_state, sample_batch, key)

    def factored_policies(self, agent_state: AgentState, policies: Params, obs_space: Space) -> Params:
        """Return ``policies`` ``[P, ...]`` in which only kernels of dense layers are instances of ``PerturbedMatrix``.

        Other instances, for example in user-defined layers, become dense arrays.
        """
        obs = one_observation(obs_space, self.policy_obs_key)
        return explicit(policies, dense_kernels(self.policy_network, agent_state.params.policy, obs))

    def normalized_policy(self, agent_state: AgentState, policy: Params, reference: Observation) -> Params:
        """Return policy parameters with hidden layers normalized over reference observations ``[N, ...]``.

        See ``evorl.networks.virtual_batch``; the observations are preprocessed as for acting.
        """
        obs = preprocess(agent_state, reference, self.policy_obs_key)
        return virtually_normalized(self.policy_network, policy, obs)
