"""The agent that soft actor-critics share: a stochastic policy, an ensemble of critics with slow copies, a temperature.

Equations are those of Haarnoja et al. 2018 (https://arxiv.org/abs/1812.05905), with discrete actions those of
Christodoulou 2019 (https://arxiv.org/abs/1910.07207). An algorithm changes what critics give and how they learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution, observation_ndim, preprocess
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.networks import EnsembleQNetwork, PolicyNetwork, apply_network, build_torso, select_observation
from evorl.ops.losses import td_error
from evorl.ops.normalization import init_statistics
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field


class SoftActorCriticAgent(Agent):
    """A stochastic policy, an ensemble of critics with slow copies, and a temperature.

    Attributes:
        policy_network: parameters of the action distribution from an observation.
        critic_network: values ``[K, ...]`` of an observation and an action, or ``[K, ..., A]`` of all discrete actions;
            or distributions of them, with one more axis.
        distribution: the action distribution: tanh-normal, or categorical.
        temperature: the first weight of the entropy.
        adaptive_temperature: whether the temperature follows the target entropy.
        target_entropy_scale: the target entropy is minus this per dimension of a box, or this share of the greatest
            entropy of discrete actions; ``None`` for 1.0 and 0.5.
        normalize_obs: whether observations are normalised by running statistics.
        policy_obs_key: the entry of a dict observation that the policy sees.
        value_obs_key: the entry that the critics see.
    """

    policy_network: nn.Module = pytree_field(static=True)
    critic_network: nn.Module = pytree_field(static=True)
    distribution: ActionDistribution = pytree_field(static=True)
    temperature: float = 1.0
    adaptive_temperature: bool = True
    target_entropy_scale: float | None = None
    normalize_obs: bool = False
    policy_obs_key: str | None = None
    value_obs_key: str | None = None

    ranges: ClassVar[Mapping[str, str]] = {"temperature": "(0, inf)"}
    part_settings: ClassVar[Mapping[str, Any]] = {"network": Mapping, "critic_network": Mapping, "num_critics": int}
    # Whether the algorithm is for boxes only.
    continuous_only: ClassVar[bool] = False
    # Whether it keeps running statistics of its networks.
    keeps_statistics: ClassVar[bool] = False
    # Of the torsos, where a config is silent.
    network_defaults: ClassVar[Mapping[str, Any]] = {"torso": (256, 256), "activation": "relu"}

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The networks that ``network``, ``critic_network`` (where critics differ) and ``num_critics`` describe."""
        name = cls.__name__.removesuffix("Agent")
        if cls.continuous_only and isinstance(env.action_space, Discrete):
            raise ValueError(
                f"{name} acts in flat Boxes, and this environment's action space is {env.action_space!r}. "
                "SAC and DQN act in Discrete spaces."
            )
        distribution = action_distribution(env.action_space, name)
        given = {"keeps_statistics": cls.keeps_statistics, **cls.network_defaults}
        options = settings.pop("network", {})
        policy_ndim, value_ndim = (
            observation_ndim(env.obs_space, settings.get(key)) for key in ("policy_obs_key", "value_obs_key")
        )
        return {
            "policy_network": PolicyNetwork(build_torso(options, **given), distribution.num_parameters, policy_ndim),
            "critic_network": EnsembleQNetwork(
                build_torso({**options, **settings.pop("critic_network", {})}, **given),
                settings.pop("num_critics", 2),
                distribution.size if distribution.is_discrete else None,
                value_ndim,
            ),
            "distribution": distribution,
        }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh networks, each from its own key; the slow critics start as copies."""
        policy_key, critic_key = jax.random.split(key)
        obs = jax.tree.map(lambda x: x[None], obs_space.zeros())
        critic = self.fresh_critics(self.critic_network, obs, action_space, critic_key)
        params = PyTreeDict(
            policy=self.policy_network.init(policy_key, select_observation(obs, self.policy_obs_key)),
            critic=critic,
            target_critic=jax.tree.map(jnp.copy, critic),
            log_temperature=jnp.log(jnp.float32(self.temperature)),
        )
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=params, obs_preprocessor_state=statistics)

    def fresh_critics(self, network: nn.Module, obs: Observation, action_space: Space, key: Key) -> Params:
        """First parameters of a network of the kind of ``critic_network``; ``obs`` has one leading axis."""
        action = () if self.distribution.is_discrete else (action_space.zeros()[None],)
        return network.init(key, select_observation(obs, self.value_obs_key), *action)

    @property
    def target_entropy(self) -> jax.Array | float:
        """The entropy that the temperature aims at, in nats."""
        size = self.distribution.size
        # A share of 1 would ask for uniformly random actions.
        unit, usual_scale = (math.log(size), 0.5) if self.distribution.is_discrete else (-size, 1.0)
        return unit * (usual_scale if self.target_entropy_scale is None else self.target_entropy_scale)

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """The action distributions in observations ``[N, ...]``."""
        obs = preprocess(agent_state, obs, self.policy_obs_key)
        return self.distribution(apply_network(self.policy_network, policy_params, obs))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Actions drawn from the policy."""
        return self.policy(agent_state, agent_state.params.policy, sample_batch.obs).sample(key), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The mode of the policy."""
        return self.policy(agent_state, agent_state.params.policy, sample_batch.obs).mode(), PyTreeDict()

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """What every critic expects of the actions that are evaluated, ``[K, N]``."""
        actions = self.policy(agent_state, params["policy"], obs).mode()
        return self.critics(agent_state, params["critic"], obs, actions)

    def critics(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action | None, network: Any = None
    ) -> jax.Array:
        """What every critic makes of actions ``[N, ...]``, ``[K, N]``; of all discrete actions for ``None``.

        Args:
            agent_state: for the statistics of observations.
            params: of the critics, or of their slow copies.
            obs: ``[N, ...]``.
            actions: ``[N, ...]``, or ``None`` for ``[K, N, A]``.
            network: another ensemble over observations and actions.
        """
        network = self.critic_network if network is None else network
        obs = preprocess(agent_state, obs, self.value_obs_key)
        if not self.distribution.is_discrete:
            return apply_network(network, params, obs, actions)
        outputs = apply_network(network, params, obs)  # [K, N, A]
        return outputs if actions is None else jnp.take_along_axis(outputs, actions[None, :, None], axis=-1)[..., 0]

    def drawn(self, policy: Any, keys: Key) -> tuple[Action | None, jax.Array, jax.Array]:
        """Actions of a policy, their log-probability and the entropy, ``[N]``.

        With discrete actions none is drawn (``None``): the log-probability is its expectation over all of them.
        """
        if self.distribution.is_discrete:
            entropy = policy.entropy()
            return None, -entropy, entropy
        actions, log_prob = policy.sample_and_log_prob(keys)
        return actions, log_prob, -log_prob

    def expected(self, policy: Any, outputs: jax.Array) -> jax.Array:
        """Of discrete actions the expectation of ``[..., N, A]`` over the policy, ``[..., N]``; else ``outputs``."""
        return (policy.probs * outputs).sum(axis=-1) if self.distribution.is_discrete else outputs

    def pooled(self, outputs: jax.Array) -> jax.Array:
        """One value, which the policy maximises, of those of all critics: ``[K, N, ...]`` to ``[N, ...]``."""
        return outputs.min(axis=0)

    def soft_values(
        self, policy: Any, agent_state: AgentState, critic_params: Params, obs: Observation, keys: Key
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of the policy in each observation: the pooled value, the log-probability and the entropy, ``[N]``.

        With discrete actions the first two are expectations over all actions; otherwise of one drawn action.
        """
        actions, log_prob, entropy = self.drawn(policy, keys)
        values = self.pooled(self.critics(agent_state, critic_params, obs, actions))
        return self.expected(policy, values), log_prob, entropy

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Squared soft Bellman errors of all critics (eq. 5 and 6); a truncated step bootstraps."""
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        next_q, next_log_prob, _ = self.soft_values(policy, agent_state, params.target_critic, batch.next_obs, keys)
        next_values = next_q - jnp.exp(params.log_temperature) * next_log_prob
        return bellman_loss(self.critics(agent_state, critic_params, batch.obs, batch.actions), next_values, batch)

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """``E[alpha log pi(a|s) - Q(s, a)]`` (eq. 9; eq. 12 of Christodoulou) with the critics' pooled value."""
        return self.policy_loss(self.policy(agent_state, policy_params, batch.obs), agent_state, batch, keys)

    def policy_loss(
        self, policy: Any, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """``actor_loss`` of the action distributions in ``batch.obs``."""
        params = agent_state.params
        values, log_prob, entropy = self.soft_values(policy, agent_state, params.critic, batch.obs, keys)
        loss = (jnp.exp(params.log_temperature) * log_prob - values).mean()
        return loss, PyTreeDict(actor_loss=loss, entropy=entropy.mean())

    def temperature_loss(self, log_temperature: jax.Array, entropy: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """Raises the temperature while the entropy is below its target (eq. 18, with the gradient to log alpha)."""
        loss = log_temperature * jax.lax.stop_gradient(entropy - self.target_entropy)
        return loss, PyTreeDict(temperature=jnp.exp(log_temperature))


def bellman_loss(q_values: jax.Array, next_values: jax.Array, batch: SampleBatch) -> tuple[jax.Array, PyTreeDict]:
    """Half the squared errors of ``q_values`` ``[K, N]`` to ``r + discount * next_values``, summed over critics.

    ``batch.extras.weights`` weigh rows, ``[N]``, or rows of each critic, ``[K, N]``. Beside the loss comes what is
    reported of it, and ``td_errors`` ``[K, N]``.
    """
    errors = td_error(q_values, batch.rewards, batch.extras.discounts, next_values)
    loss = (batch.extras.weights * jnp.square(errors)).mean(axis=-1).sum()
    return 0.5 * loss, PyTreeDict(critic_loss=loss, q_value=q_values.mean(), td_errors=errors)
