"""BRO, bigger, regularized, optimistic (Nauman et al. 2024, https://arxiv.org/abs/2405.16158).

Soft actor-critic with wide residual critics that estimate quantiles of the return. Targets are the mean of the critics,
not their minimum. A second policy explores: it shifts the means of the first policy towards actions on which critics
disagree; an adaptive weight limits the divergence between the two policies. Networks and optimizers are reset early
in training. The defaults follow BRO (fast), with two updates per step.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import update_part
from evorl.agents.observations import observation_ndim, one_observation, preprocess
from evorl.agents.part_settings import TorsoDifferences, TorsoSettings
from evorl.agents.quantile_critics import QuantileCriticsAgent, QuantileCriticSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.heads import ShiftNetwork, apply_network
from evorl.ops.optimization import Optimizer
from evorl.ops.random import split_rows
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Observation, Params, PyTreeDict, PyTreeNode, pytree_field

MIN_LOG_FACTOR, MAX_LOG_FACTOR = -10.0, 7.5  # bounds of the logarithms of optimism and divergence weight


class BROAgent(QuantileCriticsAgent, SACAgent):
    """A policy, an optimistic policy for exploration, an ensemble of quantile critics, and a temperature.

    ``factor_of_number`` computes the optimism and the divergence weight from unbounded learned numbers.

    Attributes:
        shift_network: maps an observation and the policy's means before ``tanh`` to shifts of these means.
        optimism: initial weight of the critics' disagreement in the loss of the optimistic policy.
        divergence_weight: initial weight of the divergence between the policies in the loss of the optimistic policy.
        target_divergence: target of the divergence between the two policies, in nats per action dimension.
        exploration_scale: ratio of the optimistic policy's standard deviation to that of the policy.
    """

    shift_network: nn.Module = pytree_field(static=True, kw_only=True)
    optimism: Annotated[float, Within("[1e-4, 1e3]")] = 1.0
    divergence_weight: Annotated[float, Within("[1e-4, 1e3]")] = 0.25
    target_divergence: Annotated[float, Within("(0, inf)")] = 0.05
    exploration_scale: Annotated[float, Within("(0, inf)")] = 0.75
    target_entropy_scale: float | None = 0.5

    part_settings: ClassVar[PyTreeNode] = QuantileCriticSettings(
        network=TorsoSettings((256, 256), "relu", orthogonal=True),
        critic_network=TorsoDifferences((512, 512)),
        policy_output_scale=math.sqrt(2.0),
        min_log_std=-10.0,
        log_std_bound="tanh",
        num_atoms=100,
    )

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        parts = super().parts(settings, env)
        critic = parts["critic_network"].clone(output_scale=math.sqrt(2.0))
        ndim = observation_ndim(env.obs_space, settings.get("policy_obs_key"))
        shift = ShiftNetwork(parts["policy_network"].torso, parts["distribution"].size, ndim)
        return {**parts, "critic_network": critic, "shift_network": shift}

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Initialize networks, temperature, and the unconstrained parameters of optimism and divergence weight."""
        key, shift_key = jax.random.split(key)
        means = jnp.zeros((1, self.distribution.size))
        return super().init_params(obs_space, action_space, key) | PyTreeDict(
            shift=self.shift_network.init(shift_key, one_observation(obs_space, self.policy_obs_key), means),
            optimism=number_of_factor(self.optimism),
            divergence_weight=number_of_factor(self.divergence_weight),
        )

    def optimistic_policy(self, agent_state: AgentState, shift_params: Params, obs: Observation) -> tuple[Any, Any]:
        """Return the optimistic policy for observations ``[N, ...]``, and its divergence from the policy, ``[N]``.

        The divergence compares the normal distributions before ``tanh``, both with the policy's standard deviation, so
        it does not depend on ``exploration_scale``. Results have no gradient with respect to the policy.
        """
        params = agent_state.params
        policy = jax.lax.stop_gradient(self.policy(agent_state, params.policy, obs))
        inputs = (preprocess(agent_state, obs, self.policy_obs_key), policy.loc)
        shifts = apply_network(self.shift_network, shift_params, *inputs)
        divergence = 0.5 * jnp.square(shifts / policy.scale).sum(axis=-1)
        return policy.replace(loc=policy.loc + shifts, scale=self.exploration_scale * policy.scale), divergence

    def exploring_policy(self, agent_state: AgentState, obs: Observation) -> Any:
        return self.optimistic_policy(agent_state, agent_state.params.shift, obs)[0]

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the critics' quantile Huber loss and metrics; targets average each quantile over target critics."""
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        next_actions, next_log_prob, _ = self.sample_actions(policy, keys)
        next_atoms = self.critics(agent_state, params.target_critic, batch.next_obs, next_actions).mean(axis=0)
        next_atoms -= (self.alpha(params.log_temperature) * next_log_prob)[:, None]  # [N, M]
        return self.quantile_loss(critic_params, agent_state, batch, next_atoms)

    def shift_loss(
        self, shift_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the loss ``weight * divergence - values - optimism * disagreement`` of the optimistic policy.

        The disagreement is the mean distance of the critics' quantiles from their mean over critics, which is
        ``|Q_1 - Q_2| / 2`` for two critics.
        """
        params = agent_state.params
        policy, divergence = self.optimistic_policy(agent_state, shift_params, batch.obs)
        atoms = self.critics(agent_state, params.critic, batch.obs, policy.sample(keys))  # [K, N, M]
        disagreement = jnp.abs(atoms - atoms.mean(axis=0)).mean()
        weight, divergence = factor_of_number(params.divergence_weight), divergence.mean()
        loss = weight * divergence - atoms.mean() - factor_of_number(params.optimism) * disagreement
        return loss, PyTreeDict(divergence=divergence)

    def optimism_loss(self, number: jax.Array, divergence: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """Return a loss on which a gradient step lowers the optimism while ``divergence`` exceeds its target."""
        optimism = factor_of_number(number)
        return optimism * self._excess(divergence), PyTreeDict(optimism=optimism)

    def divergence_weight_loss(self, number: jax.Array, divergence: jax.Array) -> tuple[jax.Array, PyTreeDict]:
        """Return a loss on which a gradient step raises the weight while ``divergence`` exceeds its target."""
        weight = factor_of_number(number)
        return -weight * self._excess(divergence), PyTreeDict(divergence_weight=weight)

    def _excess(self, divergence: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(divergence / self.distribution.size - self.target_divergence)


def factor_of_number(number: jax.Array) -> jax.Array:
    """Map an unbounded number to a positive factor: ``tanh``, rescaled to [-10, 7.5], is the factor's logarithm."""
    return jnp.exp(MIN_LOG_FACTOR + 0.5 * (MAX_LOG_FACTOR - MIN_LOG_FACTOR) * (1.0 + jnp.tanh(number)))


def number_of_factor(factor: jax.Array | float) -> jax.Array:
    """Return the number that ``factor_of_number`` maps to ``factor``."""
    share = (jnp.log(jnp.float32(factor)) - MIN_LOG_FACTOR) / (MAX_LOG_FACTOR - MIN_LOG_FACTOR)
    return jnp.arctanh(2.0 * share - 1.0)


class BROWorkflow(SACWorkflow):
    """BRO: updates critics, policy, temperature, optimistic policy and its factors, then target networks.

    Attributes:
        factor_optimizer: optimizer of the optimism and the divergence weight.
    """

    agent: BROAgent
    updates_per_iteration: float = pytree_field(static=True, default=2)
    batch_size: int = 128
    learning_starts: float = 2500.0
    replay_capacity: int = 1_000_000
    resets: tuple[int, ...] = (25_002,)  # updates; reached after 15,000 steps, as in the paper
    policy_delay: int = pytree_field(default=1, setting=False)
    actor_optimizer: Optimizer = Optimizer("adamw")
    critic_optimizer: Optimizer = Optimizer("adamw")
    temperature_optimizer: Optimizer = Optimizer(beta1=0.5)
    factor_optimizer: Optimizer = Optimizer(learning_rate=3e-5, beta1=0.5)

    loss_names: ClassVar[tuple[str, ...]] = (*SACWorkflow.loss_names, "divergence", "optimism", "divergence_weight")

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        params = agent_state.params
        return super().init_optimizers(agent_state) | PyTreeDict(
            shift=self.actor_optimizer.init(params.shift),
            optimism=self.factor_optimizer.init(params.optimism),
            divergence_weight=self.factor_optimizer.init(params.divergence_weight),
        )

    def update_actor(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update policy and temperature, then, using the new policy, the optimistic policy and its two factors."""
        keys, shift_keys = split_rows(keys)
        agent_state, opt_state, losses = super().update_actor(agent_state, opt_state, batch, keys, progress)
        inputs: tuple[Any, ...] = (agent_state, batch, shift_keys)
        for name, loss_fn, optimizer in (
            ("shift", self.agent.shift_loss, self.actor_optimizer),
            ("optimism", self.agent.optimism_loss, self.factor_optimizer),
            ("divergence_weight", self.agent.divergence_weight_loss, self.factor_optimizer),
        ):
            step = {"loss_fn": loss_fn, "optimizer": optimizer, "progress": progress}
            agent_state, opt_state, part_losses = update_part(name, agent_state, opt_state, *inputs, **step)
            losses |= part_losses
            inputs = (losses.divergence,)
        return agent_state, opt_state, losses
