"""The agent that on-policy algorithms share: a stochastic policy and a value function.

An algorithm adds its loss and the numbers in it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution, observation_ndim, preprocess
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.networks import (
    FeatureNetwork,
    PolicyNetwork,
    Torso,
    ValueNetwork,
    apply_network,
    build_torso,
    select_observation,
)
from evorl.ops.normalization import init_statistics
from evorl.ops.optimization import standardize
from evorl.ops.returns import gae
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field


class ActorCriticAgent(Agent):
    """A stochastic policy and a value function, with networks of their own or heads on a shared one.

    Discrete actions are categorical. Box actions are drawn from a normal distribution whose standard deviation does not
    depend on the observation, and squashed into (-1, 1) by tanh; log-probabilities are those of the unsquashed sample:
    ratios of two policies and gradients are the same.

    Attributes:
        policy_network: parameters of the action distribution from an observation, or from the shared features.
        value_network: value of an observation, or of the shared features; ``None`` for an agent without.
        distribution: the (unsquashed) action distribution.
        shared_network: features that both read; ``None`` where each network reads the observation itself.
        normalize_obs: whether observations are normalised by running statistics.
        policy_obs_key: the entry of a dict observation that the policy sees.
        value_obs_key: the entry that the value function sees.
    """

    policy_network: nn.Module = pytree_field(static=True)
    value_network: nn.Module | None = pytree_field(static=True)
    distribution: ActionDistribution = pytree_field(static=True)
    shared_network: nn.Module | None = pytree_field(static=True, default=None)
    normalize_obs: bool = False
    policy_obs_key: str | None = None
    value_obs_key: str | None = None

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The networks that ``network`` in the settings describes, for the spaces of ``env``."""
        options = dict(settings.pop("network", {}))
        shared = options.pop("shared", False)
        if not isinstance(shared, bool):
            raise ValueError(f"agent.network.shared must be true or false, got {shared!r}.")
        torso = build_torso(options, torso=(64, 64))
        distribution = action_distribution(env.action_space, cls.__name__.removesuffix("Agent"), squashed=False)
        keys = [settings.get(name) for name in ("policy_obs_key", "value_obs_key")]
        policy_ndim, value_ndim = (observation_ndim(env.obs_space, key) for key in keys)
        shared_network = None
        if shared:
            if keys[0] != keys[1]:
                raise ValueError(
                    "agent.network.shared=true reads one observation, and agent.policy_obs_key and agent.value_obs_key "
                    f"name two, {keys[0]!r} and {keys[1]!r}: choose the same, or separate networks."
                )
            shared_network = FeatureNetwork(torso, policy_ndim)
            torso, policy_ndim, value_ndim = Torso(orthogonal=torso.orthogonal), 1, 1
        return {
            "policy_network": PolicyNetwork(
                torso,
                distribution.num_parameters,
                policy_ndim,
                state_independent_std=not distribution.is_discrete,
            ),
            "value_network": ValueNetwork(torso, value_ndim),
            "distribution": distribution,
            "shared_network": shared_network,
        }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh networks, each from its own key."""
        policy_key, value_key, shared_key = jax.random.split(key, 3)
        obs = jax.tree.map(lambda x: x[None], obs_space.zeros())
        params = PyTreeDict()
        if self.shared_network is not None:
            params.shared = self.shared_network.init(shared_key, select_observation(obs, self.policy_obs_key))
        fresh = AgentState(params=params)
        params.policy = self.policy_network.init(policy_key, self._features(fresh, params, obs, self.policy_obs_key))
        if self.value_network is not None:
            params.value = self.value_network.init(value_key, self._features(fresh, params, obs, self.value_obs_key))
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=params, obs_preprocessor_state=statistics)

    def _features(self, agent_state: AgentState, params: Params, obs: Observation, obs_key: str | None) -> jax.Array:
        obs = preprocess(agent_state, obs, obs_key)
        return obs if self.shared_network is None else apply_network(self.shared_network, params["shared"], obs)

    def policy(self, agent_state: AgentState, params: Params, obs: Observation) -> Any:
        """The (unsquashed) action distributions in observations ``[..., *observation]``, of batch shape ``[...]``."""
        features = self._features(agent_state, params, obs, self.policy_obs_key)
        return self.distribution(apply_network(self.policy_network, params["policy"], features))

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Values of observations, ``[...]``.

        Raises:
            ValueError: the agent has no value network.
        """
        if self.value_network is None:
            raise ValueError("this agent was built without a value network.")
        return apply_network(
            self.value_network, params["value"], self._features(agent_state, params, obs, self.value_obs_key)
        )

    def _squash(self, raw_actions: jax.Array) -> Action:
        return raw_actions if self.distribution.is_discrete else jnp.tanh(raw_actions)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Actions drawn from the policy; remembers the unsquashed sample and its log-probability."""
        raw, log_prob = self.policy(agent_state, agent_state.params, sample_batch.obs).sample_and_log_prob(key)
        return self._squash(raw), PyTreeDict(raw_action=raw, log_prob=log_prob)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The mode of the policy."""
        return self._squash(self.policy(agent_state, agent_state.params, sample_batch.obs).mode()), PyTreeDict()

    def with_advantages(
        self,
        agent_state: AgentState,
        trajectory: SampleBatch,
        discount: jax.Array | float,
        gae_lambda: jax.Array | float,
    ) -> SampleBatch:
        """What losses need of a trajectory ``[T, B]``: observations, and in ``extras.policy_extras`` beside what was
        remembered ``advantages`` and value ``targets`` by GAE, and ``old_values``, those at collection.
        """
        values = self.values(agent_state, agent_state.params, trajectory.obs)
        next_values = self.values(agent_state, agent_state.params, trajectory.next_obs)
        termination = trajectory.extras.env_extras.termination
        advantages, targets = gae(
            trajectory.rewards, values, next_values, termination, trajectory.dones, discount, gae_lambda
        )
        remembered = trajectory.extras.policy_extras | {
            "advantages": advantages,
            "targets": targets,
            "old_values": values,
        }
        return SampleBatch(obs=trajectory.obs, extras=PyTreeDict(policy_extras=remembered))


def with_standardized_advantages(batch: SampleBatch) -> SampleBatch:
    """A batch of ``with_advantages`` whose advantages have mean 0 and variance 1."""
    remembered = batch.extras.policy_extras
    standardized = remembered | {"advantages": standardize(remembered.advantages)}
    return batch.replace(extras=batch.extras.replace(policy_extras=standardized))
