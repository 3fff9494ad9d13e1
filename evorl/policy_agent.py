"""A policy without anything to learn it by: what evolution needs of an agent."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.agent import Agent, AgentState, observation_ndim, preprocess
from evorl.envs.env import Env
from evorl.envs.space import Box, Discrete, Space
from evorl.networks import PolicyNetwork, apply_network, build_torso, select_observation
from evorl.networks.virtual_batch import virtually_normalized
from evorl.ops.normalization import init_statistics
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field


class PolicyAgent(Agent):
    """A deterministic policy: the action of the greatest output in a ``Discrete`` space, the outputs in a ``Box``,
    through ``tanh`` if it is bounded.

    Attributes:
        policy_network: from observations to outputs.
        discrete: whether actions are numbers.
        bounded: whether actions are in [-1, 1].
        normalize_obs: normalise observations by running statistics.
        policy_obs_key: the entry of a dict observation that the policy sees.
    """

    policy_network: nn.Module = pytree_field(static=True)
    discrete: bool = False
    bounded: bool = True
    normalize_obs: bool = False
    policy_obs_key: str | None = None

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The network that ``network`` in the settings describes."""
        space = env.action_space
        if isinstance(space, Discrete):
            num_outputs = space.n
        elif isinstance(space, Box) and len(space.shape) == 1:
            num_outputs = space.shape[0]
        else:
            raise ValueError(
                f"Policies are evolved for Discrete spaces and flat Boxes, and this environment's action space is "
                f"{space!r}. RandomAgent acts in any space."
            )
        torso = build_torso(settings.pop("network", {}), torso=(16, 16), activation="tanh")
        ndim = observation_ndim(env.obs_space, settings.get("policy_obs_key"))
        return {
            "policy_network": PolicyNetwork(torso, num_outputs, ndim, output_scale=0.01),
            "discrete": isinstance(space, Discrete),
            "bounded": isinstance(space, Discrete) or space.is_bounded,
        }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """A fresh policy."""
        obs = jax.tree.map(lambda x: x[None], obs_space.zeros())
        policy = self.policy_network.init(key, select_observation(obs, self.policy_obs_key))
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=PyTreeDict(policy=policy), obs_preprocessor_state=statistics)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The policy's actions."""
        obs = preprocess(agent_state, sample_batch.obs, self.policy_obs_key)
        outputs = apply_network(self.policy_network, agent_state.params.policy, obs)
        if self.discrete:
            return jnp.argmax(outputs, axis=-1).astype(jnp.int32), PyTreeDict()
        return jnp.tanh(outputs) if self.bounded else outputs, PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The policy's actions."""
        return self.compute_actions(agent_state, sample_batch, key)

    def normalized_policy(self, agent_state: AgentState, policy: Params, reference: Observation) -> Params:
        """The parameters by which a policy acts with hidden layers normalised over reference observations ``[N, ...]``.

        See ``evorl.networks.virtual_batch``; observations are preprocessed as those that are acted on.
        """
        obs = preprocess(agent_state, reference, self.policy_obs_key)
        return virtually_normalized(self.policy_network, policy, obs)
