"""Soft actor-critic (SAC, Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905), also for discrete actions
(Christodoulou 2019, https://arxiv.org/abs/1910.07207).

An off-policy actor-critic that maximizes the sum of the return and the policy's entropy. The temperature, the weight
of the entropy, is adapted to keep the entropy near a target. The minimum over an ensemble of critics limits
overestimation. Equation numbers refer to the first paper unless the second is named. TQC, DisCor, CrossQ, BRO, RLPD
and recurrent SAC inherit from these classes.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import (
    CriticEnsembleAgent,
    StochasticPolicyAgent,
    delay_state,
    update_if_due,
    update_part,
    with_projections,
    with_target_networks,
)
from evorl.agents.part_settings import CategoricalSoftActorCriticSettings
from evorl.config.values import require_positive
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.ops.losses import least_of
from evorl.ops.optimization import Optimizer
from evorl.ops.random import split_rows
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.off_policy_state import LearnerState


class SACAgent(CriticEnsembleAgent, StochasticPolicyAgent):
    """A stochastic policy, an ensemble of critics with target networks, and a temperature.

    Attributes:
        temperature: entropy coefficient alpha: the initial value, or the constant one without adaptive_temperature.
        adaptive_temperature: adapt the temperature so that the entropy approaches its target; false keeps it constant.
        target_entropy_scale: the target entropy is minus this number per dimension of a Box, or this fraction of the
            maximum entropy of discrete actions; ``None`` means 1.0 for a Box and 0.5 for discrete actions.
        support_low: lowest return in the support of categorical distributions; unused for expected values.
        support_high: highest return in the support of categorical distributions; unused for expected values.
    """

    temperature: Annotated[float, Within("(0, inf)")] = 1.0
    adaptive_temperature: bool = True
    target_entropy_scale: float | None = None
    support_low: float = pytree_field(default=-10.0, kw_only=True)
    support_high: float = pytree_field(default=10.0, kw_only=True)

    part_settings: ClassVar[PyTreeNode] = CategoricalSoftActorCriticSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        distribution, num_atoms = cls.pop_distribution(settings, env), cls.pop_num_atoms(settings, env)
        parts = cls.build_networks(settings, env, distribution.num_parameters, num_atoms)
        return {**parts, "distribution": distribution}

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        params = super().init_params(obs_space, action_space, key)
        return params | {"log_temperature": jnp.log(jnp.float32(self.temperature))}

    @property
    def target_entropy(self) -> jax.Array | float:
        """Target of the policy's entropy, in nats."""
        size = self.distribution.size
        # For discrete actions a scale of 1 would require uniformly random actions.
        unit, default_scale = (math.log(size), 0.5) if self.distribution.is_discrete else (-size, 1.0)
        return unit * (default_scale if self.target_entropy_scale is None else self.target_entropy_scale)

    def alpha(self, log_temperature: jax.Array) -> jax.Array:
        """Return the entropy coefficient: the learned one, or the setting ``temperature`` if it stays constant."""
        return jnp.exp(log_temperature) if self.adaptive_temperature else jnp.asarray(self.temperature, jnp.float32)

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Return every critic's expected values of the greedy actions, ``[K, N]``."""
        actions = self.policy(agent_state, params["policy"], obs).mode()
        return self.expected(self.critics(agent_state, params["critic"], obs, actions))

    def sample_actions(self, policy: Any, keys: Key) -> tuple[Action | None, jax.Array, jax.Array]:
        """Return sampled actions, their log-probabilities ``[N]``, and the entropy estimates ``-log_prob`` ``[N]``.

        Discrete actions are not sampled: the results are ``None``, the expected log-probability, and the exact entropy.
        """
        if self.distribution.is_discrete:
            entropy = policy.entropy()
            return None, -entropy, entropy
        actions, log_prob = policy.sample_and_log_prob(keys)
        return actions, log_prob, -log_prob

    def expectation(self, policy: Any, outputs: jax.Array) -> jax.Array:
        """Return the expectation of ``outputs`` ``[..., N, A]`` over a discrete policy, or ``outputs`` for a Box."""
        return (policy.probs * outputs).sum(axis=-1) if self.distribution.is_discrete else outputs

    def pool_critics(self, outputs: jax.Array) -> jax.Array:
        """Return the minimum expected value over the ensemble (clipped double Q-learning), from ``[K, N, ...]``."""
        return least_of(self.expected(outputs))

    def soft_values(
        self, policy: Any, agent_state: AgentState, critic_params: Params, obs: Observation, keys: Key
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return pooled value, log-probability and entropy for each observation, ``[N]``; see ``sample_actions``."""
        actions, log_prob, entropy = self.sample_actions(policy, keys)
        values = self.pool_critics(self.critics(agent_state, critic_params, obs, actions))
        return self.expectation(policy, values), log_prob, entropy

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the soft Bellman loss of all critics and its metrics, see ``soft_bellman_loss`` (eq. 5 and 6).

        Truncated episodes bootstrap from the value of their last observation. There is one key per transition, ``[N]``.
        """
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        actions, log_prob, _ = self.sample_actions(policy, keys)
        next_outputs = self.critics(agent_state, params.target_critic, batch.next_obs, actions)
        if self.critic_network.num_atoms is None:
            next_outputs = self.expectation(policy, self.pool_critics(next_outputs))
        outputs = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        return self.soft_bellman_loss(outputs, next_outputs, self.alpha(params.log_temperature) * log_prob, batch)

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return ``E[alpha log pi(a|s) - Q(s, a)]`` (eq. 9; eq. 12 of Christodoulou), with Q from ``pool_critics``."""
        return self.policy_loss(self.policy(agent_state, policy_params, batch.obs), agent_state, batch, keys)

    def policy_loss(
        self, policy: Any, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return ``actor_loss`` and its metrics; ``policy`` are the action distributions for ``batch.obs``."""
        values, log_prob, entropy = self.soft_values(policy, agent_state, agent_state.params.critic, batch.obs, keys)
        loss = (self.alpha(agent_state.params.log_temperature) * log_prob - values).mean()
        return loss, PyTreeDict(actor_loss=loss, entropy=entropy.mean())

    def temperature_loss(self, log_temperature: jax.Array, entropy: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """Return the temperature loss (eq. 18, with log alpha in place of alpha) and the temperature.

        A gradient step on the loss raises the temperature while ``entropy``, the batch mean, is below its target.
        """
        loss = log_temperature * jax.lax.stop_gradient(entropy - self.target_entropy)
        return loss, PyTreeDict(temperature=self.alpha(log_temperature))


class SACWorkflow(OffPolicyWorkflow):
    """SAC: each update trains the critics, then policy and temperature if due, then moves the target networks.

    Attributes:
        policy_delay: number of critic updates per update of policy and temperature.
        actor_optimizer: optimizer of the policy.
        critic_optimizer: optimizer of the critics.
        temperature_optimizer: optimizer of the logarithm of the temperature.
        tau: Polyak step size of the target networks.
    """

    agent: SACAgent
    total_timesteps: float = 3e4
    actor_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    temperature_optimizer: Optimizer = Optimizer()
    policy_delay: int = 1
    tau: Annotated[float, Within("[0, 1]")] = 0.005

    loss_names: ClassVar[tuple[str, ...]] = ("critic_loss", "q_value", "actor_loss", "entropy", "temperature")

    def __post_init__(self) -> None:
        require_positive(self, "policy_delay")
        super().__post_init__()

    def init_learning(self, key: Key) -> LearnerState:
        """Initialize the learner; the projections of the optimizers are applied to the initial weights."""
        state = super().init_learning(key)
        optimizers = {"policy": self.actor_optimizer, "critic": self.critic_optimizer}
        return state.replace(agent_state=with_projections(state.agent_state, **optimizers))

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        """Return the optimizers' states by name of their parameters, and the entries of ``delay_state``."""
        params = agent_state.params
        return PyTreeDict(
            critic=self.critic_optimizer.init(params.critic),
            policy=self.actor_optimizer.init(params.policy),
            log_temperature=self.temperature_optimizer.init(params.log_temperature),
            **delay_state(self.policy_delay, "actor_loss", "entropy", "temperature"),
        )

    def learn_from(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the critics once, policy and temperature if due, then the target networks."""
        critic_keys, actor_keys = split_rows(keys)
        agent_state, opt_state, losses = self.update_critics(agent_state, opt_state, batch, critic_keys, progress)

        def update(agent_state: AgentState, opt_state: PyTreeDict) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
            return self.update_actor(agent_state, opt_state, batch, actor_keys, progress)

        agent_state, opt_state, actor_losses = update_if_due(update, self.policy_delay, agent_state, opt_state)
        losses.td_errors = losses.td_errors.mean(axis=0)  # over critics
        params = with_target_networks(agent_state.params, self.tau)
        return agent_state.replace(params=params), opt_state, losses | actor_losses

    def update_critics(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the critics once; return the states of the agent and the optimizers, and the metrics."""
        step = {"loss_fn": self.agent.critic_loss, "optimizer": self.critic_optimizer, "progress": progress}
        return update_part("critic", agent_state, opt_state, agent_state, batch, keys, **step)

    def update_actor(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the policy once, using the updated critics, then the temperature if it is adaptive."""
        step = {"loss_fn": self.agent.actor_loss, "optimizer": self.actor_optimizer, "progress": progress}
        agent_state, opt_state, losses = update_part("policy", agent_state, opt_state, agent_state, batch, keys, **step)
        step |= {"loss_fn": self.agent.temperature_loss, "optimizer": self.temperature_optimizer}
        adapted, opt_state, temperature = update_part("log_temperature", agent_state, opt_state, losses.entropy, **step)
        return (adapted if self.agent.adaptive_temperature else agent_state), opt_state, losses | temperature
