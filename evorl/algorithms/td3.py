"""Twin delayed deep deterministic policy gradient (TD3, Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477).

A deterministic policy climbs the value of a critic; the least of several critics at a slightly noisy action guards
against overestimated values, and the policy learns less often than they do. With one critic, no such noise and no delay
it is DDPG (Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971); with many environments, large batches and
distributions of returns FastTD3 (Seo et al. 2025, https://arxiv.org/abs/2505.22642).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, observation_ndim, preprocess
from evorl.envs.env import Env
from evorl.envs.space import Box, Space
from evorl.networks import EnsembleQNetwork, PolicyNetwork, apply_network, build_torso, select_observation
from evorl.ops import collectives
from evorl.ops.exploration import ActionNoise, add_gaussian_noise
from evorl.ops.losses import td_error
from evorl.ops.normalization import init_statistics
from evorl.ops.optimization import Optimizer, gradient_step, when_due
from evorl.ops.target_update import polyak_update
from evorl.ops.value_distributions import categorical_losses
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Observation, Params, PolicyExtras, PyTreeDict, pytree_field
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.settings import checked_num_atoms, checked_value, positive


class TD3Agent(Agent):
    """A deterministic policy and an ensemble of critics, each with a slow copy.

    Attributes:
        policy_network: the action before ``tanh`` from an observation.
        critic_network: of an observation and an action, values ``[K, ...]``, or logits ``[K, ..., M]`` of distributions
            on a grid.
        support_low: the lowest return on the grid of distributions.
        support_high: the highest.
        noise: what is added to actions to explore.
        target_noise: standard deviation of the noise on the actions whose values are bootstrapped from.
        target_noise_bound: where that noise is clipped.
        normalize_obs: whether observations are normalised by running statistics.
        policy_obs_key: the entry of a dict observation that the policy sees.
        value_obs_key: the entry that the critics see.
    """

    policy_network: nn.Module = pytree_field(static=True)
    critic_network: nn.Module = pytree_field(static=True)
    support_low: float = -10.0
    support_high: float = 10.0
    noise: ActionNoise = ActionNoise()
    target_noise: float = 0.2
    target_noise_bound: float = 0.5
    normalize_obs: bool = False
    policy_obs_key: str | None = None
    value_obs_key: str | None = None

    ranges: ClassVar[Mapping[str, str]] = {"target_noise": "[0, inf)", "target_noise_bound": "[0, inf)"}

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """The networks that ``network``, ``num_critics``, ``values`` and ``num_atoms`` in the settings describe."""
        space = env.action_space
        if not (isinstance(space, Box) and len(space.shape) == 1 and space.is_bounded):
            raise ValueError(
                f"TD3 and DDPG act in flat, bounded Boxes, and this environment's action space is {space!r}. DQN acts "
                "in Discrete spaces, SAC and PPO in these and in any flat Box."
            )
        num_critics = positive(settings.pop("num_critics", 2), "agent.num_critics")
        values = checked_value(settings.pop("values", "expected"), Literal["expected", "categorical"], "agent.values")
        ends = [settings.get(name, getattr(cls, name)) for name in ("support_low", "support_high")]
        num_atoms = checked_num_atoms(settings.pop("num_atoms", None), values, *ends)
        torso = build_torso(settings.pop("network", {}), torso=(256, 256), activation="relu")
        ndim = {name: observation_ndim(env.obs_space, settings.get(f"{name}_obs_key")) for name in ("policy", "value")}
        return {
            "policy_network": PolicyNetwork(torso, space.shape[0], ndim["policy"]),
            "critic_network": EnsembleQNetwork(torso, num_critics, None, ndim["value"], num_atoms=num_atoms),
        }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh networks, each from its own key; the slow ones start as copies."""
        policy_key, critic_key = jax.random.split(key)
        obs = jax.tree.map(lambda x: x[None], obs_space.zeros())
        policy = self.policy_network.init(policy_key, select_observation(obs, self.policy_obs_key))
        critic_inputs = select_observation(obs, self.value_obs_key), action_space.zeros()[None]
        critic = self.critic_network.init(critic_key, *critic_inputs)
        params = PyTreeDict(
            policy=policy,
            critic=critic,
            target_policy=jax.tree.map(jnp.copy, policy),
            target_critic=jax.tree.map(jnp.copy, critic),
        )
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        memory = self.noise.memory(action_space.shape[0])
        return AgentState(params=params, obs_preprocessor_state=statistics, memory=memory)

    @property
    def support(self) -> jax.Array:
        """The grid of categorical values, ``[M]``."""
        return jnp.linspace(self.support_low, self.support_high, self.critic_network.num_atoms)

    def _policy(self, agent_state: AgentState, policy_params: Params, obs: Observation) -> jax.Array:
        obs = preprocess(agent_state, obs, self.policy_obs_key)
        return jnp.tanh(apply_network(self.policy_network, policy_params, obs))

    def _critics(self, agent_state: AgentState, critic_params: Params, obs: Observation, actions: Action) -> jax.Array:
        obs = preprocess(agent_state, obs, self.value_obs_key)
        return apply_network(self.critic_network, critic_params, obs, actions)

    def _expected(self, outputs: jax.Array) -> jax.Array:
        return outputs if self.critic_network.num_atoms is None else jax.nn.softmax(outputs) @ self.support

    def values(self, agent_state: AgentState, params: Params, obs: Observation) -> jax.Array:
        """Expected returns of the policy's actions by each critic, ``[K, ...]``."""
        actions = self._policy(agent_state, params.policy, obs)
        return self._expected(self._critics(agent_state, params.critic, obs, actions))

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The policy's actions with noise, to which the memory belongs."""
        actions = self._policy(agent_state, agent_state.params.policy, sample_batch.obs)
        actions, memory = self.noise.add(key, actions, (sample_batch.extras or {}).get("memory"))
        return actions, PyTreeDict() if memory is None else PyTreeDict(memory=memory)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The policy's actions."""
        return self._policy(agent_state, agent_state.params.policy, sample_batch.obs), PyTreeDict(
            sample_batch.extras or {}
        )

    def critic_loss(
        self, critic_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key
    ) -> tuple[jax.Array, PyTreeDict]:
        """Losses of all critics to the target of the least (algorithm 1) with a key for each row ``[N]``.

        A truncated step bootstraps.
        """
        params = agent_state.params
        next_actions = self._policy(agent_state, params.target_policy, batch.next_obs)
        next_actions = add_gaussian_noise(keys, next_actions, self.target_noise, self.target_noise_bound)
        next_outputs = self._critics(agent_state, params.target_critic, batch.next_obs, next_actions)
        least = jnp.argmin(self._expected(next_outputs), axis=0)  # [N]
        next_outputs = next_outputs[least, jnp.arange(len(batch))]
        outputs = self._critics(agent_state, critic_params, batch.obs, batch.actions)
        losses, errors = self._losses(outputs, batch.rewards, batch.extras.discounts, next_outputs)
        loss, q_value = (batch.extras.weights * losses).mean(axis=-1).sum(), self._expected(outputs).mean()
        return loss, PyTreeDict(critic_loss=loss, q_value=q_value, td_errors=errors.mean(axis=0))

    def _losses(
        self, outputs: jax.Array, rewards: jax.Array, discounts: jax.Array, next_outputs: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Losses and what priorities are made of, both ``[K, N]``."""
        if self.critic_network.num_atoms is None:
            errors = td_error(outputs, rewards, discounts, next_outputs)
            return jnp.square(errors), errors
        return categorical_losses(outputs, rewards, discounts, jax.nn.softmax(next_outputs), self.support)

    def actor_loss(
        self, policy_params: Params, agent_state: AgentState, batch: SampleBatch, keys: Key | None = None
    ) -> tuple[jax.Array, PyTreeDict]:
        """``-E[Q_1(s, pi(s))]``, the deterministic policy gradient's (Silver et al. 2014, eq. 9); draws nothing."""
        actions = self._policy(agent_state, policy_params, batch.obs)
        obs = preprocess(agent_state, batch.obs, self.value_obs_key)
        first_critic = jax.tree.map(lambda x: x[:1], agent_state.params.critic)
        outputs = apply_network(self.critic_network.clone(num_critics=1), first_critic, obs, actions)
        loss = -self._expected(outputs).mean()
        return loss, PyTreeDict(actor_loss=loss)


class TD3Workflow(OffPolicyWorkflow):
    """TD3: the critics at each update; the policy and then all slow copies at every ``policy_delay``-th.

    Attributes:
        actor_optimizer: of the policy.
        critic_optimizer: of the critics.
        policy_delay: updates of the critics between two of the policy and of the slow copies.
        tau: share of the new networks in the slow ones after such an update.
    """

    agent: TD3Agent
    actor_optimizer: Optimizer = Optimizer()
    critic_optimizer: Optimizer = Optimizer()
    policy_delay: int = 2
    tau: float = 0.005

    ranges: ClassVar[Mapping[str, str]] = {"tau": "[0, 1]"}
    loss_names: ClassVar[tuple[str, ...]] = ("critic_loss", "q_value", "actor_loss")

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """One state each, a count of the updates, and the last loss of the policy."""
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
        """One update of the critics, and of the rest if it is due."""
        critic, critic_opt, losses = gradient_step(
            self.agent.critic_loss,
            self.critic_optimizer,
            agent_state.params.critic,
            opt_state.critic,
            *(agent_state, batch, keys),
            progress=progress,
        )
        num_updates = opt_state.num_updates + 1
        agent_state = agent_state.replace(params=agent_state.params.replace(critic=critic))
        opt_state = opt_state.replace(critic=critic_opt, num_updates=num_updates)

        def rest(states: tuple[AgentState, Any]) -> tuple[AgentState, Any]:
            return self._delayed_update(*states, batch, progress)

        is_due = num_updates % self.policy_delay == 0
        agent_state, opt_state = when_due(is_due, rest, (agent_state, opt_state))
        return agent_state, opt_state, losses | {"actor_loss": opt_state.actor_loss}

    def _delayed_update(
        self, agent_state: AgentState, opt_state: Any, batch: SampleBatch, progress: jax.Array
    ) -> tuple[AgentState, Any]:
        """One update of the policy, and of the slow copies."""
        params = agent_state.params
        policy, actor_opt, losses = gradient_step(
            self.agent.actor_loss,
            self.actor_optimizer,
            params.policy,
            opt_state.actor,
            *(agent_state, batch),
            progress=progress,
        )
        params = params.replace(
            policy=policy,
            target_policy=polyak_update(params.target_policy, policy, self.tau),
            target_critic=polyak_update(params.target_critic, params.critic, self.tau),
        )
        actor_loss = collectives.mean_over_shares(losses.actor_loss)
        return agent_state.replace(params=params), opt_state.replace(actor=actor_opt, actor_loss=actor_loss)
