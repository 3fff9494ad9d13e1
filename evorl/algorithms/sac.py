"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905), also for discrete actions
(Christodoulou 2019, https://arxiv.org/abs/1910.07207).

An off-policy actor-critic that maximises the return and the policy's entropy; the temperature that weighs the two is
adapted so that the entropy stays near a target. An ensemble of critics guards against overestimated values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution, observation_ndim, preprocess
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.networks import EnsembleQNetwork, PolicyNetwork, apply_network, build_torso, select_observation
from evorl.ops.losses import td_error
from evorl.ops.normalization import init_statistics
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.random import split_rows
from evorl.ops.target_update import polyak_update
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.settings import positive


class SACAgent(Agent):
    """A stochastic policy, an ensemble of critics with slow copies, and a temperature.

    Attributes:
        policy_network: parameters of the action distribution from an observation.
        critic_network: values ``[K, ...]`` of an observation and an action, or ``[K, ..., A]`` of all discrete actions.
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

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The networks that ``network`` and ``num_critics`` in the settings describe."""
        num_critics = positive(settings.pop("num_critics", 2), "agent.num_critics")
        torso = build_torso(settings.pop("network", {}), torso=(256, 256), activation="relu")
        distribution = action_distribution(env.action_space, "SAC")
        num_actions = distribution.size if distribution.is_discrete else None
        return {
            "policy_network": PolicyNetwork(
                torso, distribution.num_parameters, observation_ndim(env.obs_space, settings.get("policy_obs_key"))
            ),
            "critic_network": EnsembleQNetwork(
                torso, num_critics, num_actions, observation_ndim(env.obs_space, settings.get("value_obs_key"))
            ),
            "distribution": distribution,
        }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh networks, each from its own key; the slow critics start as copies."""
        policy_key, critic_key = jax.random.split(key)
        obs = jax.tree.map(lambda x: x[None], obs_space.zeros())
        action = () if self.distribution.is_discrete else (action_space.zeros()[None],)
        critic = self.critic_network.init(critic_key, select_observation(obs, self.value_obs_key), *action)
        params = PyTreeDict(
            policy=self.policy_network.init(policy_key, select_observation(obs, self.policy_obs_key)),
            critic=critic,
            target_critic=jax.tree.map(jnp.copy, critic),
            log_temperature=jnp.log(jnp.float32(self.temperature)),
        )
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=params, obs_preprocessor_state=statistics)

    @property
    def target_entropy(self) -> jax.Array | float:
        """The entropy that the temperature aims at, in nats."""
        size = self.distribution.size
        # A share of 1 would ask for uniformly random actions.
        unit, usual_scale = (math.log(size), 0.5) if self.distribution.is_discrete else (-size, 1.0)
        return unit * (usual_scale if self.target_entropy_scale is None else self.target_entropy_scale)

    def _policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        obs = preprocess(agent_state, obs, self.policy_obs_key)
        return self.distribution(apply_network(self.policy_network, policy_params, obs))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Actions drawn from the policy."""
        return self._policy(agent_state, agent_state.params.policy, sample_batch.obs).sample(key), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The mode of the policy."""
        return self._policy(agent_state, agent_state.params.policy, sample_batch.obs).mode(), PyTreeDict()

    def _soft_values(
        self, agent_state: AgentState, policy_params: Params, critic_params: Params, obs: Observation, keys: Key
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of the policy in each observation: ``min_k Q_k``, the log-probability and the entropy, ``[N]``.

        With discrete actions the first two are expectations over all actions; otherwise of one drawn action.
        """
        policy = self._policy(agent_state, policy_params, obs)
        critic_obs = preprocess(agent_state, obs, self.value_obs_key)
        if self.distribution.is_discrete:
            q_values = apply_network(self.critic_network, critic_params, critic_obs).min(axis=0)  # [N, A]
            entropy = policy.entropy()
            return (policy.probs * q_values).sum(axis=-1), -entropy, entropy
        actions, log_prob = policy.sample_and_log_prob(keys)
        q_values = apply_network(self.critic_network, critic_params, critic_obs, actions).min(axis=0)  # [N]
        return q_values, log_prob, -log_prob

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Squared soft Bellman errors of all critics (eq. 5 and 6); a truncated step bootstraps."""
        params = agent_state.params
        next_q, next_log_prob, _ = self._soft_values(
            agent_state, params.policy, params.target_critic, batch.next_obs, keys
        )
        next_values = next_q - jnp.exp(params.log_temperature) * next_log_prob
        obs = preprocess(agent_state, batch.obs, self.value_obs_key)
        if self.distribution.is_discrete:
            q_values = apply_network(self.critic_network, critic_params, obs)
            q_values = jnp.take_along_axis(q_values, batch.actions[None, :, None], axis=-1)[..., 0]
        else:
            q_values = apply_network(self.critic_network, critic_params, obs, batch.actions)  # [K, N]
        errors = td_error(q_values, batch.rewards, batch.extras.discounts, next_values)
        loss = (batch.extras.weights * jnp.square(errors)).mean(axis=-1).sum()
        return 0.5 * loss, PyTreeDict(critic_loss=loss, q_value=q_values.mean(), td_errors=errors.mean(axis=0))

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """``E[alpha log pi(a|s) - min_k Q_k(s, a)]`` (eq. 9; eq. 12 of Christodoulou)."""
        params = agent_state.params
        q_values, log_prob, entropy = self._soft_values(agent_state, policy_params, params.critic, batch.obs, keys)
        loss = (jnp.exp(params.log_temperature) * log_prob - q_values).mean()
        return loss, PyTreeDict(actor_loss=loss, entropy=entropy.mean())

    def temperature_loss(self, log_temperature: jax.Array, entropy: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """Raises the temperature while the entropy is below its target (eq. 18, with the gradient to log alpha)."""
        loss = log_temperature * jax.lax.stop_gradient(entropy - self.target_entropy)
        return loss, PyTreeDict(temperature=jnp.exp(log_temperature))


class SACWorkflow(OffPolicyWorkflow):
    """SAC: critics, actor and temperature in turn, then the slow critics follow.

    Attributes:
        actor_optimizer: of the policy.
        critic_optimizer: of the critics.
        temperature_optimizer: of the logarithm of the temperature.
        tau: share of the new critics in the slow ones after each update.
    """

    agent: SACAgent
    actor_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    temperature_optimizer: Optimizer = Optimizer()
    tau: float = 0.005

    ranges: ClassVar[Mapping[str, str]] = {"tau": "[0, 1]"}
    loss_names: ClassVar[tuple[str, ...]] = ("critic_loss", "q_value", "actor_loss", "entropy", "temperature")

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """One state each."""
        params = agent_state.params
        return PyTreeDict(
            critic=self.critic_optimizer.init(params.critic),
            actor=self.actor_optimizer.init(params.policy),
            temperature=self.temperature_optimizer.init(params.log_temperature),
        )

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """One update of each part."""
        critic_keys, actor_keys = split_rows(keys)
        params = agent_state.params
        step = functools.partial(gradient_step, progress=progress)
        given = (agent_state, batch, critic_keys)
        critic, critic_opt, critic_losses = step(
            self.agent.critic_loss, self.critic_optimizer, params.critic, opt_state.critic, *given
        )
        agent_state = agent_state.replace(params=params.replace(critic=critic))
        given = (agent_state, batch, actor_keys)
        policy, actor_opt, actor_losses = step(
            self.agent.actor_loss, self.actor_optimizer, params.policy, opt_state.actor, *given
        )
        log_temperature, temperature_opt, temperature = step(
            self.agent.temperature_loss,
            self.temperature_optimizer,
            params.log_temperature,
            opt_state.temperature,
            actor_losses.entropy,
        )
        params = PyTreeDict(
            policy=policy,
            critic=critic,
            target_critic=polyak_update(params.target_critic, critic, self.tau),
            log_temperature=log_temperature if self.agent.adaptive_temperature else params.log_temperature,
        )
        opt_state = PyTreeDict(critic=critic_opt, actor=actor_opt, temperature=temperature_opt)
        return agent_state.replace(params=params), opt_state, critic_losses | actor_losses | temperature
