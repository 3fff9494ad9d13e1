"""Implicit Q-learning (IQL, Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169): offline, without asking for
values of actions that nobody has tried.

A network of state values learns an upper expectile of what critics say of the recorded actions: about what the best of
them are worth. Critics bootstrap from it, and the policy imitates recorded actions, the more the better they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.agent import AgentState, allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.critic_ensemble import CriticEnsembleAgent
from evorl.agents.part_settings import differing_torso
from evorl.agents.target_network import update_part, with_target_networks
from evorl.distributions import Categorical, Normal, clip_bounded, squash
from evorl.envs.action_spaces import ActionSpaces, bounded_dimensions, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.networks.heads import ValueNetwork, apply_network
from evorl.ops.losses import td_error
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0


class IQLAgent(CriticEnsembleAgent):
    """A stochastic policy, an ensemble of critics with target networks, and a network of state values.

    The policy's means are within the bounds of actions by ``tanh``, its standard deviations one vector for all states.

    Attributes:
        value_network: state values ``[...]`` of an observation.
        discrete: whether actions are numbers.
        bounded: for each dimension of a Box whether actions are in [-1, 1]; empty for all.
        expectile: which expectile of the values of recorded actions is learned, tau of the paper: 0.5 is their mean,
            towards 1 the greatest.
        advantage_scale: how much more a better action is imitated, beta of the paper: 0 imitates all alike.
        greatest_weight: the most that an action counts.
    """

    value_network: nn.Module = pytree_field(static=True, kw_only=True)
    discrete: bool = pytree_field(default=False, metadata={"built": True})
    bounded: tuple[bool, ...] = pytree_field(static=True, default=(), metadata={"built": True})
    expectile: float = 0.7
    advantage_scale: float = 3.0
    greatest_weight: float = 100.0
    normalize_obs: bool = pytree_field(static=True, default=True, kw_only=True)

    ranges: ClassVar[Mapping[str, str]] = {
        "expectile": "(0, 1)",
        "advantage_scale": "[0, inf)",
        "greatest_weight": "(0, inf)",
    }
    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE_AND_BOXES

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The networks that the settings describe; that of state values is built as the critics are."""
        discrete = isinstance(env.action_space, Discrete)
        torso = differing_torso(settings["network"], settings["critic_network"])
        num_actions = num_outputs(env.action_space)
        parts = cls.build_networks(settings, env, num_actions if discrete else 2 * num_actions)
        return {
            **parts,
            "policy_network": parts["policy_network"].clone(state_independent_std=not discrete),
            "value_network": ValueNetwork(torso, observation_ndim(env.obs_space, settings.get("value_obs_key"))),
            "discrete": discrete,
            "bounded": bounded_dimensions(env.action_space),
        }

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Fresh networks, each from its own key."""
        key, value_key = jax.random.split(key)
        value = self.value_network.init(value_key, one_observation(obs_space, self.value_obs_key))
        return super().init_params(obs_space, action_space, key) | {"value": value}

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """The action distributions in observations ``[N, ...]``."""
        outputs = self.policy_outputs(agent_state, policy_params, obs)
        if self.discrete:
            return Categorical(allowed_only(outputs, obs))
        loc, log_std = jnp.split(outputs, 2, axis=-1)
        return Normal(squash(loc, self.bounded), jnp.exp(jnp.clip(log_std, MIN_LOG_STD, MAX_LOG_STD)))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Actions drawn from the policy."""
        actions = self.policy(agent_state, agent_state.params.policy, sample_batch.obs).sample(key)
        return actions if self.discrete else clip_bounded(actions, self.bounded), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The mode of the policy."""
        return self.policy(agent_state, agent_state.params.policy, sample_batch.obs).mode(), PyTreeDict()

    def state_values(self, agent_state: AgentState, value_params: Params, obs: Observation) -> jax.Array:
        """What observations ``[N, ...]`` are worth, ``[N]``."""
        return apply_network(self.value_network, value_params, preprocess(agent_state, obs, self.value_obs_key))

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """What every critic expects of the actions that are evaluated, ``[K, N]``."""
        actions = self.policy(agent_state, params["policy"], obs).mode()
        return self.critics(agent_state, params["critic"], obs, actions)

    def recorded_values(self, agent_state: AgentState, batch: SampleBatch) -> jax.Array:
        """What recorded actions are worth to the most cautious target critic, ``[N]``."""
        target_critic = agent_state.params.target_critic
        return self.critics(agent_state, target_critic, batch.obs, batch.actions).min(axis=0)

    def value_loss(
        self, value_params: Params, agent_state: AgentState, batch: SampleBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """The expectile loss of state values to those of recorded actions (eq. 5)."""
        values = self.state_values(agent_state, value_params, batch.obs)
        errors = jax.lax.stop_gradient(self.recorded_values(agent_state, batch)) - values
        asymmetry = jnp.where(errors < 0.0, 1.0 - self.expectile, self.expectile)
        loss = (batch.extras.weights * asymmetry * jnp.square(errors)).mean()
        return loss, PyTreeDict(value_loss=loss)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Squared errors of all critics to what the state value of the successor promises (eq. 6)."""
        next_values = self.state_values(agent_state, agent_state.params.value, batch.next_obs)
        q_values = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        errors = td_error(q_values, batch.rewards, batch.extras.discounts, next_values)
        loss = (batch.extras.weights * jnp.square(errors)).mean(axis=-1).sum()
        return loss, PyTreeDict(critic_loss=loss, q_value=q_values.mean(), td_errors=errors.mean(axis=0))

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """Recorded actions made more probable, by the exponential of their advantage (eq. 7); draws nothing."""
        values = self.state_values(agent_state, agent_state.params.value, batch.obs)
        advantages = self.recorded_values(agent_state, batch) - values
        weights = jnp.minimum(jnp.exp(self.advantage_scale * advantages), self.greatest_weight)
        log_prob = self.policy(agent_state, policy_params, batch.obs).log_prob(batch.actions)
        loss = -(batch.extras.weights * jax.lax.stop_gradient(weights) * log_prob).mean()
        return loss, PyTreeDict(actor_loss=loss)


class IQLWorkflow(OffPolicyWorkflow):
    """IQL, offline: state values, then the policy and the critics by them; target networks follow.

    Attributes:
        actor_optimizer: of the policy.
        value_optimizer: of the state values.
        critic_optimizer: of the critics.
        tau: share of the present critics in their target networks after each update.
    """

    agent: IQLAgent
    total_timesteps: float = 1e6
    actor_optimizer: Optimizer = Optimizer()
    value_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    tau: float = 0.005
    offline: bool = pytree_field(static=True, default=True)

    ranges: ClassVar[Mapping[str, str]] = {"tau": "[0, 1]"}
    loss_names: ClassVar[tuple[str, ...]] = ("value_loss", "critic_loss", "q_value", "actor_loss")

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        """One state for each group of parameters, by its name."""
        params = agent_state.params
        return PyTreeDict(
            policy=self.actor_optimizer.init(params.policy),
            value=self.value_optimizer.init(params.value),
            critic=self.critic_optimizer.init(params.critic),
        )

    def learn_from(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """One update of each part; nothing is drawn."""
        losses = PyTreeDict()
        for part in (
            ("value", self.agent.value_loss, self.value_optimizer),
            ("policy", self.agent.actor_loss, self.actor_optimizer),
            ("critic", self.agent.critic_loss, self.critic_optimizer),
        ):
            agent_state, opt_state, of_part = update_part(
                part, agent_state, opt_state, agent_state, batch, progress=progress
            )
            losses |= of_part
        params = with_target_networks(agent_state.params, self.tau)
        return agent_state.replace(params=params), opt_state, losses
