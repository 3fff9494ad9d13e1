"""DisCor (Kumar et al. 2020, https://arxiv.org/abs/2003.07305): soft actor-critic with distribution correction.

Learning from inaccurate targets is useless or harmful. Error networks estimate the difference between each critic and
the true values. A transition has a smaller weight if the estimated error of its target, the next value, is larger.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import update_part
from evorl.agents.part_settings import SoftActorCriticSettings, TorsoDifferences, differing_torsos
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import squared_error
from evorl.ops.random import split_rows
from evorl.ops.trees import polyak_update
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode, pytree_field


class DisCorSettings(SoftActorCriticSettings):
    """Network settings of a DisCor agent.

    Attributes:
        error_network: overrides of ``network`` for the error networks.
    """

    error_network: TorsoDifferences = TorsoDifferences(torso=(256, 256, 256))


class DisCorAgent(SACAgent):
    """A soft actor-critic with one error network per critic, which estimates the accumulated error of that critic.

    Attributes:
        error_network: maps an observation and an action to errors ``[K, ...]``, or to ``[K, ..., A]`` for all discrete
            actions.
        error_temperature: initial temperature of weights ``exp(-error / temperature)``; later it tracks the mean error.
    """

    error_network: nn.Module = pytree_field(static=True, kw_only=True)
    error_temperature: Annotated[float, Within("(0, inf)")] = 10.0
    support_low: float = pytree_field(default=-10.0, kw_only=True, setting=False)
    support_high: float = pytree_field(default=10.0, kw_only=True, setting=False)

    part_settings: ClassVar[PyTreeNode] = DisCorSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the networks; ``error_network`` overrides ``network`` for the error networks."""
        _, torso = differing_torsos(settings["network"], settings.pop("error_network"), "agent.error_network")
        parts = super().parts(settings, env)
        return {**parts, "error_network": parts["critic_network"].clone(torso=torso)}

    def init_params(self, obs_space: Space, action_space: Space, key: Key) -> PyTreeDict:
        """Initialize all networks, including the error networks; target error networks start as copies."""
        key, error_key = jax.random.split(key)
        error = self.init_critics(self.error_network, obs_space, action_space, error_key)
        return super().init_params(obs_space, action_space, key) | PyTreeDict(
            error=error,
            target_error=jax.tree.map(jnp.copy, error),
            error_temperature=jnp.full(self.critic_network.num_critics, self.error_temperature, jnp.float32),
        )

    def discounted_next_errors(self, agent_state: AgentState, batch: SampleBatch, keys: Key) -> jax.Array:
        """Return ``discount * error(s', a')`` by the target error networks, ``[K, N]``: the errors of the targets.

        The next action is sampled from the policy; for discrete actions the result is the expectation.
        """
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        actions, _, _ = self.sample_actions(policy, keys)
        errors = self.critics(agent_state, params.target_error, batch.next_obs, actions, self.error_network)
        return batch.extras.discounts * self.expectation(policy, errors)

    def error_loss(
        self,
        error_params: Params,
        agent_state: AgentState,
        batch: SampleBatch,
        td_errors: jax.Array,
        next_errors: jax.Array,
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return half the squared error to the targets ``|td_errors| + next_errors``, ``[K, N]``, and metrics."""
        errors = self.critics(agent_state, error_params, batch.obs, batch.actions, self.error_network)
        targets = jax.lax.stop_gradient(jnp.abs(td_errors) + next_errors)
        loss = squared_error(errors, targets).mean(axis=-1).sum()
        # Errors are magnitudes: clamp negative outputs of the network, so that the temperature stays positive.
        return 0.5 * loss, PyTreeDict(error_loss=loss, errors=jnp.maximum(errors, 1e-6).mean(axis=-1))


class DisCorWorkflow(SACWorkflow):
    """DisCor: updates critics on weighted transitions, error networks, policy and temperature, then target networks."""

    agent: DisCorAgent

    loss_names: ClassVar[tuple[str, ...]] = (*SACWorkflow.loss_names, "error_loss", "error_temperature")

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        """Return the optimizers' states; the error networks use the critics' optimizer with a separate state."""
        error = self.critic_optimizer.init(agent_state.params.error)
        return super().init_optimizers(agent_state) | PyTreeDict(error=error)

    def update_critics(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the critics (with corrected weights), the error networks and their temperatures once."""
        temperature = agent_state.params.error_temperature  # [K]
        keys, error_keys = split_rows(keys)
        next_errors = self.agent.discounted_next_errors(agent_state, batch, error_keys)
        weights = batch.extras.weights * weights_of_mean_one(-next_errors / temperature[:, None])
        weighted = batch.replace(extras=batch.extras.replace(weights=weights))
        agent_state, opt_state, losses = super().update_critics(agent_state, opt_state, weighted, keys, progress)
        inputs = (agent_state, batch, losses.td_errors, next_errors)
        step = {"loss_fn": self.agent.error_loss, "optimizer": self.critic_optimizer, "progress": progress}
        agent_state, opt_state, error_losses = update_part("error", agent_state, opt_state, *inputs, **step)
        temperature = polyak_update(temperature, collectives.mean_over_shares(error_losses.pop("errors")), self.tau)
        agent_state = agent_state.replace(params=agent_state.params.replace(error_temperature=temperature))
        error_losses.error_temperature = temperature.mean()
        return agent_state, opt_state, losses | error_losses


def weights_of_mean_one(logits: jax.Array) -> jax.Array:
    """Return ``exp(logits)`` ``[K, N]``, scaled to mean 1 for each critic over the transitions of all devices."""
    whole = collectives.gather_rows(logits, axis=-1)
    return jnp.exp(logits - jax.nn.logsumexp(whole, axis=-1, keepdims=True)) * whole.shape[-1]
