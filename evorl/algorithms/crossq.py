"""CrossQ (Bhatt et al. 2024, https://arxiv.org/abs/1902.05605): soft actor-critic without target critics.

Wide critics with batch renormalization evaluate both ends of each transition, (s, a) and (s', a'), in one forward pass,
so that the batch statistics cover the distributions of both. The same pass yields the targets. With target networks,
categorical values and projected weights this is XQC (Palenicek et al. 2026, https://arxiv.org/abs/2509.25174). XQC with
residual blocks and repeated exploration noise is FlashSAC (Kim et al. 2026, https://arxiv.org/abs/2604.04539).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.action_value import values_of_actions_along
from evorl.agents.observations import allowed_only, preprocess
from evorl.agents.part_settings import CategoricalSoftActorCriticSettings, TorsoDifferences, TorsoSettings
from evorl.algorithms.sac import SACAgent, SACWorkflow
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.layers import STATISTICS
from evorl.networks.q_networks import apply_in_training
from evorl.ops.optimization import Optimizer
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PyTreeDict, PyTreeNode, pytree_field


def _normalized_layers(width: int) -> tuple[str | int, ...]:
    return ("batch_renorm", width, "batch_renorm", width, "batch_renorm")


class CrossQAgent(SACAgent):
    """A stochastic policy and an ensemble of critics, both with batch renormalization, and a temperature.

    ``AgentState.extra_state`` maps each network's name to its running statistics. Batch statistics are used by the
    network being trained and by target critics; all other passes (acting, evaluation, next actions, critics in the
    policy's loss) use running statistics.

    Attributes:
        target_critics: compute targets with target networks, which have separate statistics and also normalize over
            observations and next observations together. By default, the critics' forward pass yields the targets.
        joint_policy: in training, compute the policy's batch statistics over observations and next observations
            together; its loss still covers only the observations. By default, over the observations alone.
    """

    target_critics: bool = pytree_field(static=True, default=False, kw_only=True)
    joint_policy: bool = pytree_field(static=True, default=False, kw_only=True)

    keeps_statistics: ClassVar[bool] = True
    part_settings: ClassVar[PyTreeNode] = CategoricalSoftActorCriticSettings(
        network=TorsoSettings(_normalized_layers(256), "relu", orthogonal=False),
        critic_network=TorsoDifferences(_normalized_layers(2048)),
    )

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the networks; running statistics are stored apart from the parameters."""
        state = super().init(obs_space, action_space, key)
        names = ("policy", "critic", "target_critic") if self.target_critics else ("policy", "critic")
        networks = {name: dict(state.params[name]) for name in names}
        statistics = PyTreeDict({name: networks[name].pop(STATISTICS, {}) for name in networks})
        params = PyTreeDict(networks, log_temperature=state.params.log_temperature)
        return state.replace(params=params, extra_state=statistics)

    def policy_statistics(self, agent_state: AgentState) -> Any:
        """Return the running statistics of the policy network; empty without batch normalization layers."""
        return agent_state.extra_state.policy

    def policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> Any:
        """Return the action distributions for observations ``[N, ...]``, using running statistics."""
        return super().policy(agent_state, {**policy_params, STATISTICS: agent_state.extra_state.policy}, obs)

    def critics(
        self, agent_state: AgentState, params: Params, obs: Observation, actions: Action | None, network: Any = None
    ) -> jax.Array:
        """Return the outputs ``[K, N, *]`` of all critics for actions ``[N, ...]``, using running statistics."""
        params = {**params, STATISTICS: agent_state.extra_state.critic}
        return super().critics(agent_state, params, obs, actions, network)

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the soft Bellman loss and metrics; batch statistics cover both ends of the transitions (section 3)."""
        params, statistics = agent_state.params, agent_state.extra_state
        policy = self.policy(agent_state, params.policy, batch.next_obs)
        next_actions, next_log_prob, _ = self.sample_actions(policy, keys)
        ends = [preprocess(agent_state, obs, self.value_obs_key) for obs in (batch.obs, batch.next_obs)]
        actions = () if next_actions is None else (jnp.concatenate([batch.actions, jnp.asarray(next_actions)]),)
        joined = (jnp.concatenate(ends), *actions)
        outputs, changed = apply_in_training(self.critic_network, critic_params, statistics.critic, *joined)
        targets, changed = outputs, {"critic": changed}
        if self.target_critics:
            target = (params.target_critic, statistics.target_critic)
            targets, changed["target_critic"] = apply_in_training(self.critic_network, *target, *joined)
        outputs, next_outputs = outputs[:, : len(batch)], targets[:, len(batch) :]  # [K, N, *]
        outputs = values_of_actions_along(outputs, batch.actions[None]) if next_actions is None else outputs
        if self.critic_network.num_atoms is None:
            next_outputs = self.expectation(policy, self.pool_critics(next_outputs))
        next_costs = self.alpha(params.log_temperature) * next_log_prob
        loss, losses = self.soft_bellman_loss(outputs, next_outputs, next_costs, batch)
        return loss, losses | {"statistics": changed}

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return loss and metrics as in SAC; the policy uses batch statistics, the critics use running statistics."""
        ends = (batch.obs, batch.next_obs) if self.joint_policy else (batch.obs,)
        obs = jnp.concatenate([preprocess(agent_state, x, self.policy_obs_key) for x in ends])
        outputs, statistics = apply_in_training(self.policy_network, policy_params, agent_state.extra_state.policy, obs)
        outputs = outputs[: len(batch)]
        outputs = allowed_only(outputs, batch.obs) if self.distribution.is_discrete else outputs
        loss, losses = self.policy_loss(self.distribution(outputs), agent_state, batch, keys)
        return loss, losses | {"statistics": statistics}


class CrossQWorkflow(SACWorkflow):
    """CrossQ: each update trains the critics, then policy and temperature if due, then moves target networks, if any.

    Attributes:
        tau: Polyak step size of the target networks; must be above 0 with ``agent.target_critics``, otherwise 0.
    """

    agent: CrossQAgent
    actor_optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    critic_optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    temperature_optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    policy_delay: int = 3
    tau: Annotated[float, Within("[0, 1]")] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.tau, int | float) and (self.tau > 0) != self.agent.target_critics:
            raise ValueError(
                f"tau={self.tau:g} contradicts agent.target_critics={str(self.agent.target_critics).lower()}: with "
                "target networks, tau must be above 0, such as 0.005; without them, it must be 0."
            )

    def update_critics(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the critics once, and the running statistics of critics and target networks."""
        agent_state, opt_state, losses = super().update_critics(agent_state, opt_state, batch, keys, progress)
        statistics = agent_state.extra_state.replace(**losses.pop("statistics"))
        return agent_state.replace(extra_state=statistics), opt_state, losses

    def update_actor(
        self, agent_state: AgentState, opt_state: PyTreeDict, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
        """Update the policy, its running statistics and the temperature."""
        agent_state, opt_state, losses = super().update_actor(agent_state, opt_state, batch, keys, progress)
        statistics = agent_state.extra_state.replace(policy=losses.pop("statistics"))
        return agent_state.replace(extra_state=statistics), opt_state, losses
