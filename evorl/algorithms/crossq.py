"""CrossQ (Bhatt et al. 2024, https://arxiv.org/abs/1902.05605): soft actor-critic without target critics.

Wide critics with batch renormalization evaluate both ends of each transition, (s, a) and (s', a'), in one forward pass,
so that the batch statistics cover the distributions of both. The same pass yields the targets.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.observations import preprocess
from evorl.agents.part_settings import CriticEnsembleSettings, TorsoDifferences, TorsoSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow, bellman_loss
from evorl.config.values import require_positive
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.layers import STATISTICS
from evorl.networks.q_networks import apply_in_training
from evorl.ops import collectives
from evorl.ops.loops import when_due
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PyTreeDict, PyTreeNode


def _normalized_layers(width: int) -> tuple[str | int, ...]:
    return ("batch_renorm", width, "batch_renorm", width, "batch_renorm")


class CrossQAgent(SACAgent):
    """A stochastic policy and an ensemble of critics, both with batch renormalization, and a temperature.

    ``AgentState.extra_state`` maps the name of each network to its running statistics. Only the network that is being
    trained uses batch statistics; acting, evaluation and networks that only provide targets use running statistics.
    """

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.BOXES
    keeps_statistics: ClassVar[bool] = True
    part_settings: ClassVar[PyTreeNode] = CriticEnsembleSettings(
        network=TorsoSettings(_normalized_layers(256), "relu", orthogonal=False),
        critic_network=TorsoDifferences(_normalized_layers(2048)),
    )

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the networks, without target networks; statistics are separate from the parameters."""
        state = super().init(obs_space, action_space, key)
        networks = {name: dict(state.params[name]) for name in ("policy", "critic")}
        statistics = PyTreeDict({name: networks[name].pop(STATISTICS, {}) for name in networks})
        params = PyTreeDict(networks, log_temperature=state.params.log_temperature)
        return state.replace(params=params, extra_state=statistics)

    def policy_statistics(self, agent_state: AgentState) -> Any:
        """Return the running statistics of the policy network; empty if the network has no ``batch_renorm``."""
        return agent_state.extra_state.policy

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """Return the action distributions for observations ``[N, ...]``, using running statistics."""
        return super().policy(agent_state, {**policy_params, STATISTICS: agent_state.extra_state.policy}, obs)

    def critics(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action | None, network: Any = None
    ) -> jax.Array:
        """Return the values ``[K, N]`` of actions ``[N, ...]`` by all critics, using running statistics."""
        params = {**params, STATISTICS: agent_state.extra_state.critic}
        return super().critics(agent_state, params, obs, actions, network)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the squared soft Bellman errors of all critics, with targets of the same forward pass (section 3)."""
        params = agent_state.params
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        next_actions, next_log_prob, _ = self.sample_actions(policy, keys)
        ends = [preprocess(agent_state, obs, self.value_obs_key) for obs in (batch.obs, batch.next_obs)]
        joined = (jnp.concatenate(ends), jnp.concatenate([batch.actions, jnp.asarray(next_actions)]))
        outputs, statistics = apply_in_training(
            self.critic_network, critic_params, agent_state.extra_state.critic, *joined
        )
        q_values, next_q_values = jnp.split(outputs, 2, axis=1)  # [K, N]
        next_values = self.pool_critics(next_q_values) - jnp.exp(params.log_temperature) * next_log_prob
        loss, losses = bellman_loss(q_values, next_values, batch)
        return loss, losses | {"statistics": statistics}

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the loss of SAC; the policy uses batch statistics, the critics their running statistics."""
        obs = preprocess(agent_state, batch.obs, self.policy_obs_key)
        outputs, statistics = apply_in_training(self.policy_network, policy_params, agent_state.extra_state.policy, obs)
        loss, losses = self.policy_loss(self.distribution(outputs), agent_state, batch, keys)
        return loss, losses | {"statistics": statistics}


class CrossQWorkflow(SACWorkflow):
    """CrossQ: updates the critics at each step, policy and temperature at every ``policy_delay``-th step.

    Attributes:
        policy_delay: updates of the critics per update of policy and temperature.
        tau: unused, must be 0: CrossQ has no target networks.
    """

    agent: CrossQAgent
    actor_optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    critic_optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    temperature_optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    policy_delay: int = 3
    tau: Annotated[float, Within("[0, 0]")] = 0.0

    def __post_init__(self) -> None:
        require_positive(self, "policy_delay")
        super().__post_init__()

    def init_optimizers(self, agent_state: AgentState) -> PyTreeDict:
        """Return the optimizer states, a count of the updates, and the metrics of the last update of the policy."""
        actor_losses = PyTreeDict({name: jnp.zeros(()) for name in ("actor_loss", "entropy", "temperature")})
        delay_state = PyTreeDict(num_updates=jnp.zeros((), jnp.int32), actor_losses=actor_losses)
        return super().init_optimizers(agent_state) | delay_state

    def update_critics(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the critics and their running statistics once."""
        agent_state, opt_state, losses = super().update_critics(agent_state, opt_state, batch, keys, progress)
        statistics = agent_state.extra_state.replace(critic=losses.pop("statistics"))
        return agent_state.replace(extra_state=statistics), opt_state, losses

    def update_actor(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the policy, its running statistics and the temperature if due, else return the previous losses."""
        update = super().update_actor

        def delayed(states: tuple[AgentState, PyTreeDict]) -> tuple[AgentState, PyTreeDict]:
            agent_state, opt_state, losses = update(*states, batch, keys, progress)
            statistics = agent_state.extra_state.replace(policy=losses.pop("statistics"))
            losses = collectives.mean_over_shares(losses)
            return agent_state.replace(extra_state=statistics), opt_state.replace(actor_losses=losses)

        is_due = opt_state.num_updates % self.policy_delay == 0
        agent_state, opt_state = when_due(is_due, delayed, (agent_state, opt_state))
        return agent_state, opt_state.replace(num_updates=opt_state.num_updates + 1), opt_state.actor_losses
