"""Twin delayed deep deterministic policy gradient (TD3, Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477).

A deterministic policy maximizes the value of a critic. Targets are the minimum over several critics at a slightly
noisy action, which limits overestimation. The policy is updated less often than the critics. With one critic, no target
noise and no delay this is DDPG (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971); with many environments, large
batches and categorical critics it is FastTD3 (Seo et al. 2025, https://arxiv.org/abs/2505.22642).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.critic_ensemble import CriticEnsembleAgent, update_part
from evorl.agents.observations import preprocess
from evorl.agents.part_settings import CategoricalCriticSettings
from evorl.envs.action_spaces import ActionSpaces, num_outputs
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.fields import Within
from evorl.networks.heads import apply_network
from evorl.ops import collectives
from evorl.ops.exploration import ActionNoise, add_gaussian_noise
from evorl.ops.loops import when_due
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.trees import polyak_update
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow


class TD3Agent(CriticEnsembleAgent):
    """A deterministic policy and an ensemble of critics, all with target networks.

    The policy network outputs actions before ``tanh``.

    Attributes:
        support_low: lowest return in the support of categorical distributions; unused for expected values.
        support_high: highest return in the support of categorical distributions; unused for expected values.
        noise: exploration noise, added to the policy's actions during training.
        target_noise: standard deviation of the noise on target actions (target policy smoothing).
        target_noise_bound: largest absolute value of the noise on target actions; larger noise is clipped.
    """

    support_low: float = pytree_field(default=-10.0, kw_only=True)
    support_high: float = pytree_field(default=10.0, kw_only=True)
    noise: ActionNoise = ActionNoise()
    target_noise: Annotated[float, Within("[0, inf)")] = 0.2
    target_noise_bound: Annotated[float, Within("[0, inf)")] = 0.5

    acts_in: ClassVar[ActionSpaces] = ActionSpaces.BOUNDED_BOXES
    target_names: ClassVar[tuple[str, ...]] = ("policy", "critic")
    part_settings: ClassVar[PyTreeNode] = CategoricalCriticSettings()

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        return cls.build_networks(settings, env, num_outputs(env.action_space), cls.pop_num_atoms(settings, env))

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Initialize the agent; ``recurrent_state`` is the initial state of the noise, ``None`` if stateless."""
        recurrent_state = self.noise.initial_state(action_space.shape[0])
        return super().init(obs_space, action_space, key).replace(recurrent_state=recurrent_state)

    def policy_actions(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> jax.Array:
        """Return the policy's actions ``[N, A]`` for observations ``[N, ...]``, without noise."""
        return jnp.tanh(self.policy_outputs(agent_state, policy_params, obs))

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Return each critic's expected values of the policy's actions for observations ``[N, ...]``, ``[K, N]``."""
        actions = self.policy_actions(agent_state, params.policy, obs)
        return self.expected(self.critics(agent_state, params.critic, obs, actions))

    def at_progress(self, agent_state: AgentState, progress: jax.Array) -> AgentState:
        """Return the state with the noise scale at ``progress`` as ``extra_state``; ``None`` for a constant scale."""
        return agent_state.replace(extra_state=self.noise.at_progress(progress))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the policy's actions with noise; the extras contain the noise's ``recurrent_state``, if any."""
        actions = self.policy_actions(agent_state, agent_state.params.policy, sample_batch.obs)
        scale = agent_state.extra_state
        noise = self.noise if scale is None else self.noise.replace(scale=scale)
        actions, recurrent_state = noise.add(key, actions, (sample_batch.extras or {}).get("recurrent_state"))
        return actions, PyTreeDict() if recurrent_state is None else PyTreeDict(recurrent_state=recurrent_state)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Return the policy's actions without noise, and the extras of ``sample_batch`` unchanged."""
        actions = self.policy_actions(agent_state, agent_state.params.policy, sample_batch.obs)
        return actions, PyTreeDict(sample_batch.extras or {})

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the critics' summed loss against the minimum over target critics (algorithm 1), and metrics.

        There is one key per transition, ``[N]``. Truncated episodes bootstrap from the value of their last observation.
        """
        params = agent_state.params
        next_actions = self.policy_actions(agent_state, params.target_policy, batch.next_obs)
        next_actions = add_gaussian_noise(keys, next_actions, self.target_noise, self.target_noise_bound)
        next_outputs = self.critics(agent_state, params.target_critic, batch.next_obs, next_actions)
        outputs = self.critics(agent_state, critic_params, batch.obs, batch.actions)
        losses, errors = self.value_losses(outputs, batch.rewards, batch.extras.discounts, self.least(next_outputs))
        loss, q_value = (batch.extras.weights * losses).mean(axis=-1).sum(), self.expected(outputs).mean()
        return loss, PyTreeDict(critic_loss=loss, q_value=q_value, td_errors=errors.mean(axis=0))

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return ``-E[Q_1(s, pi(s))]``, the loss of the deterministic policy gradient (Silver et al. 2014, eq. 9).

        The loss is deterministic: ``keys`` are unused.
        """
        actions = self.policy_actions(agent_state, policy_params, batch.obs)
        loss = -self.first_values(agent_state, batch.obs, actions).mean()
        return loss, PyTreeDict(actor_loss=loss)

    def first_values(self, agent_state: AgentState, obs: Observation, actions: jax.Array) -> jax.Array:
        """Return the first critic's expected values ``[N]`` of ``actions`` ``[N, A]``."""
        obs = preprocess(agent_state, obs, self.value_obs_key)
        first_critic = jax.tree.map(lambda x: x[:1], agent_state.params.critic)
        return self.expected(apply_network(self.critic_network.clone(num_critics=1), first_critic, obs, actions))[0]


class TD3Workflow(OffPolicyWorkflow):
    """TD3: each update trains the critics; every ``policy_delay``-th also the policy and all target networks.

    Attributes:
        actor_optimizer: optimizer of the policy.
        critic_optimizer: optimizer of the critics.
        policy_delay: number of critic updates per update of the policy and of all target networks.
        tau: Polyak step size of the target networks.
    """

    agent: TD3Agent
    total_timesteps: float = 2e4
    actor_optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    critic_optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    policy_delay: int = 2
    tau: Annotated[float, Within("[0, 1]")] = 0.005

    loss_names: ClassVar[tuple[str, ...]] = ("critic_loss", "q_value", "actor_loss")

    @property
    def updates_per_policy_update(self) -> int:
        """Number of critic updates per policy update."""
        return self.policy_delay

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """Return the optimizers' states, a count of critic updates, and the last loss of the policy, initially 0."""
        params = agent_state.params
        return PyTreeDict(
            critic=self.critic_optimizer.init(params.critic),
            actor=self.actor_optimizer.init(params.policy),
            num_updates=jnp.zeros((), jnp.int32),
            actor_loss=jnp.zeros(()),
        )

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, keys: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        step = {"loss_fn": self.agent.critic_loss, "optimizer": self.critic_optimizer, "progress": progress}
        agent_state, opt_state, losses = update_part("critic", agent_state, opt_state, agent_state, batch, keys, **step)
        num_updates = opt_state.num_updates + 1
        opt_state = opt_state.replace(num_updates=num_updates)

        def delayed(states: tuple[AgentState, Any]) -> tuple[AgentState, Any]:
            agent_state, opt_state = states
            params = agent_state.params
            step = (self.agent.actor_loss, self.actor_optimizer, params.policy, opt_state.actor)
            policy, actor_opt, losses = gradient_step(*step, agent_state, batch, progress=progress)
            params = params.replace(
                policy=policy,
                target_policy=polyak_update(params.target_policy, policy, self.tau),
                target_critic=polyak_update(params.target_critic, params.critic, self.tau),
            )
            actor_loss = collectives.mean_over_shares(losses.actor_loss)
            return agent_state.replace(params=params), opt_state.replace(actor=actor_opt, actor_loss=actor_loss)

        is_due = num_updates % self.policy_delay == 0
        agent_state, opt_state = when_due(is_due, delayed, (agent_state, opt_state))
        return agent_state, opt_state, losses | {"actor_loss": opt_state.actor_loss}
