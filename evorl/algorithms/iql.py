"""Implicit Q-learning (IQL, Kostrikov et al. 2021, https://arxiv.org/abs/2110.06169): offline RL that never queries the
values of actions outside the dataset.

A state-value network learns an upper expectile of the critics' values of the recorded actions, which approximates the
value of the best of these actions. The critics bootstrap from this network, and the policy imitates the recorded
actions, weighted by their exponentiated advantages.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import CriticEnsembleAgent, update_part, with_target_networks
from evorl.agents.observations import allowed_only, observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import differing_torsos
from evorl.distributions import Categorical, Normal, clip_bounded, squash
from evorl.envs.action_spaces import ActionSpaces, bounded_dimensions, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Discrete, Space
from evorl.fields import Within
from evorl.networks.heads import ValueNetwork, apply_network
from evorl.ops.losses import td_error
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0


class IQLAgent(CriticEnsembleAgent):
    """A stochastic policy, an ensemble of critics with target networks, and a state-value network.

    For a Box, ``tanh`` bounds the means of bounded dimensions; standard deviations do not depend on observations.

    Attributes:
        value_network: maps an observation to state values ``[...]``.
        discrete: True for discrete actions.
        bounded: for each dimension of a Box, True if actions are in [-1, 1]; empty if all are.
        expectile: expectile tau of the recorded actions' values that the state-value network learns: 0.5 is the mean;
            values near 1 approach the maximum.
        advantage_scale: inverse temperature beta of the advantage weights: 0 weights all actions equally.
        greatest_weight: upper bound of the weight of a recorded action in the policy's loss.
    """

    value_network: nn.Module = pytree_field(static=True, kw_only=True)
    discrete: bool = pytree_field(default=False, setting=False)
    bounded: tuple[bool, ...] = pytree_field(static=True, default=(), setting=False)
    expectile: Annotated[float, Within("(0, 1)")] = 0.7
    advantage_scale: Annotated[float, Within("[0, inf)")] = 3.0
    greatest_weight: Annotated[float, Within("(0, inf)")] = 100.0
    normalize_obs: bool = pytree_field(static=True, default=True, kw_only=True)

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.DISCRETE_AND_BOXES

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the networks from the settings; the state-value network has the critics' architecture."""
        discrete = isinstance(env.action_space, Discrete)
        _, torso = differing_torsos(settings["network"], settings["critic_network"])
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
        key, value_key = jax.random.split(key)
        value = self.value_network.init(value_key, one_observation(obs_space, self.value_obs_key))
        return super().init_params(obs_space, action_space, key) | {"value": value}

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """Return the action distributions for observations ``[N, ...]``."""
        outputs = self.policy_outputs(agent_state, policy_params, obs)
        if self.discrete:
            return Categorical(allowed_only(outputs, obs))
        loc, log_std = jnp.split(outputs, 2, axis=-1)
        return Normal(squash(loc, self.bounded), jnp.exp(jnp.clip(log_std, MIN_LOG_STD, MAX_LOG_STD)))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        actions = self.policy(agent_state, agent_state.params.policy, sample_batch.obs).sample(key)
        return actions if self.discrete else clip_bounded(actions, self.bounded), PyTreeDict()

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        return self.policy(agent_state, agent_state.params.policy, sample_batch.obs).mode(), PyTreeDict()

    def state_values(self, agent_state: AgentState, value_params: Params, obs: Observation) -> jax.Array:
        """Return the state values ``[N]`` of observations ``[N, ...]``."""
        return apply_network(self.value_network, value_params, preprocess(agent_state, obs, self.value_obs_key))

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Return every critic's values of the policy's greedy actions, ``[K, N]``."""
        actions = self.policy(agent_state, params["policy"], obs).mode()
        return self.critics(agent_state, params["critic"], obs, actions)

    def recorded_values(self, agent_state: AgentState, batch: SampleBatch) -> jax.Array:
        """Return the values of the recorded actions, ``[N]``: the minimum over the target critics."""
        return self.critics(agent_state, agent_state.params.target_critic, batch.obs, batch.actions).min(axis=0)

    def value_loss(
        self, value_params: Params, agent_state: AgentState, batch: SampleBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the expectile loss of state values against the values of recorded actions (eq. 5), and metrics."""
        values = self.state_values(agent_state, value_params, batch.obs)
        errors = jax.lax.stop_gradient(self.recorded_values(agent_state, batch)) - values
        asymmetry = jnp.where(errors < 0.0, 1.0 - self.expectile, self.expectile)
        loss = (batch.extras.weights * asymmetry * jnp.square(errors)).mean()
        return loss, PyTreeDict(value_loss=loss)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the mean squared TD error to ``r + discount * V(s')`` (eq. 6), summed over critics, and metrics."""
        next_values = self.state_values(agent_state, agent_state.params.value, batch.next_obs)
        q_values = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        errors = td_error(q_values, batch.rewards, batch.extras.discounts, next_values)
        loss = (batch.extras.weights * jnp.square(errors)).mean(axis=-1).sum()
        return loss, PyTreeDict(critic_loss=loss, q_value=q_values.mean(), td_errors=errors.mean(axis=0))

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the negative log-likelihood of recorded actions, weighted by exponentiated advantages (eq. 7).

        The loss is deterministic: ``keys`` are unused.
        """
        values = self.state_values(agent_state, agent_state.params.value, batch.obs)
        advantages = self.recorded_values(agent_state, batch) - values
        weights = jnp.minimum(jnp.exp(self.advantage_scale * advantages), self.greatest_weight)
        log_prob = self.policy(agent_state, policy_params, batch.obs).log_prob(batch.actions)
        loss = -(batch.extras.weights * jax.lax.stop_gradient(weights) * log_prob).mean()
        return loss, PyTreeDict(actor_loss=loss)


class IQLWorkflow(OffPolicyWorkflow):
    """IQL, offline: each update trains the state-value network, policy and critics, then moves the target networks.

    Attributes:
        actor_optimizer: optimizer of the policy.
        value_optimizer: optimizer of the state-value network.
        critic_optimizer: optimizer of the critics.
        tau: Polyak step size of the target networks.
    """

    agent: IQLAgent
    total_timesteps: float = 1e6
    actor_optimizer: Optimizer = Optimizer()
    value_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    tau: Annotated[float, Within("[0, 1]")] = 0.005
    offline: bool = pytree_field(static=True, default=True)

    loss_names: ClassVar[tuple[str, ...]] = ("value_loss", "critic_loss", "q_value", "actor_loss")

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        params = agent_state.params
        return PyTreeDict(
            policy=self.actor_optimizer.init(params.policy),
            value=self.value_optimizer.init(params.value),
            critic=self.critic_optimizer.init(params.critic),
        )

    def learn_from(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update each network once, then the target networks; the losses are deterministic: ``keys`` are unused."""
        losses = PyTreeDict()
        for name, loss_fn, optimizer in (
            ("value", self.agent.value_loss, self.value_optimizer),
            ("policy", self.agent.actor_loss, self.actor_optimizer),
            ("critic", self.agent.critic_loss, self.critic_optimizer),
        ):
            step = {"loss_fn": loss_fn, "optimizer": optimizer, "progress": progress}
            agent_state, opt_state, part_losses = update_part(name, agent_state, opt_state, agent_state, batch, **step)
            losses |= part_losses
        params = with_target_networks(agent_state.params, self.tau)
        return agent_state.replace(params=params), opt_state, losses
