"""Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

A trajectory is learned from several times over; the probability ratio to the policy that collected it is clipped, so
that no update goes far from that policy. Advantages are estimated by GAE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from evorl.agent import Agent, AgentState, action_distribution, observation_ndim, preprocess
from evorl.distributions import ActionDistribution
from evorl.envs.env import Env
from evorl.envs.space import Space
from evorl.networks import PolicyNetwork, ValueNetwork, apply_network, build_torso, select_observation
from evorl.ops import collectives
from evorl.ops.losses import approximate_kl, clipped_surrogate, clipped_value_error, explained_variance, squared_error
from evorl.ops.normalization import init_statistics
from evorl.ops.optimization import gradient_step, scan_minibatches, standardize
from evorl.ops.returns import gae
from evorl.ops.schedules import linear_schedule
from evorl.sample_batch import SampleBatch
from evorl.types import Action, Key, Params, PolicyExtras, PyTreeDict, pytree_field
from evorl.workflows.building import node_from_config
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.settings import checked_mapping, require_positive


class PPOAgent(Agent):
    """A stochastic policy and a value function.

    Box actions are drawn from a normal distribution and squashed into (-1, 1) by tanh; ratios are those of the
    unsquashed sample, which the tanh leaves unchanged.

    Attributes:
        policy_network: parameters of the action distribution from an observation.
        value_network: value of an observation.
        distribution: the (unsquashed) action distribution.
        clip_epsilon: the ratio counts within ``1 - clip_epsilon`` and ``1 + clip_epsilon``.
        final_clip_epsilon: its value at the end of training, reached linearly; ``None`` keeps it constant.
        value_clip_epsilon: values may move this far from those at collection; ``None`` for no limit.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        normalize_obs: whether observations are normalised by running statistics.
        normalize_advantages: whether advantages are standardised in each minibatch.
        policy_obs_key: the entry of a dict observation that the policy sees.
        value_obs_key: the entry that the value function sees.
    """

    policy_network: nn.Module = pytree_field(static=True)
    value_network: nn.Module = pytree_field(static=True)
    distribution: ActionDistribution = pytree_field(static=True)
    clip_epsilon: float = 0.2
    final_clip_epsilon: float | None = None
    value_clip_epsilon: float | None = None
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    normalize_obs: bool = False
    normalize_advantages: bool = True
    policy_obs_key: str | None = None
    value_obs_key: str | None = None

    ranges: ClassVar[Mapping[str, str]] = {
        "clip_epsilon": "(0, inf)",
        "final_clip_epsilon": "[0, inf)",
        "value_clip_epsilon": "(0, inf)",
        "value_coefficient": "[0, inf)",
    }

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        """Fresh networks, each from its own key."""
        policy_key, value_key = jax.random.split(key)
        spec = jax.tree.map(lambda x: x[None], obs_space.zeros())
        params = PyTreeDict(
            policy=self.policy_network.init(policy_key, select_observation(spec, self.policy_obs_key)),
            value=self.value_network.init(value_key, select_observation(spec, self.value_obs_key)),
        )
        statistics = init_statistics(obs_space.zeros()) if self.normalize_obs else None
        return AgentState(params=params, obs_preprocessor_state=statistics)

    def _policy(self, agent_state: AgentState, params: Params, sample_batch: SampleBatch) -> Any:
        obs = preprocess(agent_state, sample_batch.obs, self.policy_obs_key)
        return self.distribution(apply_network(self.policy_network, params["policy"], obs))

    def values(self, agent_state: AgentState, params: Params, obs: Any) -> jax.Array:
        """Values of observations, ``[...]``."""
        return apply_network(self.value_network, params["value"], preprocess(agent_state, obs, self.value_obs_key))

    def _squash(self, raw_actions: jax.Array) -> Action:
        return raw_actions if self.distribution.is_discrete else jnp.tanh(raw_actions)

    def compute_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """Actions drawn from the policy; remembers the unsquashed sample and its log-probability."""
        raw, log_prob = self._policy(agent_state, agent_state.params, sample_batch).sample_and_log_prob(key)
        return self._squash(raw), PyTreeDict(raw_action=raw, log_prob=log_prob)

    def evaluate_actions(
        self, agent_state: AgentState, sample_batch: SampleBatch, key: Key
    ) -> tuple[Action, PolicyExtras]:
        """The mode of the policy."""
        return self._squash(self._policy(agent_state, agent_state.params, sample_batch).mode()), PyTreeDict()

    def loss(
        self, params: Params, agent_state: AgentState, batch: SampleBatch, progress: jax.Array
    ) -> tuple[jax.Array, PyTreeDict]:
        """Clipped surrogate, value error and entropy bonus of a minibatch ``[N, ...]`` (eq. 9 of the paper)."""
        remembered = batch.extras.policy_extras
        policy = self._policy(agent_state, params, batch)
        log_ratio = policy.log_prob(remembered.raw_action) - remembered.log_prob
        clip_epsilon = self._clip_epsilon(progress)
        policy_loss = clipped_surrogate(log_ratio, remembered.advantages, clip_epsilon).mean()
        values = self.values(agent_state, params, batch.obs)
        if self.value_clip_epsilon is None:
            value_loss = squared_error(values, remembered.targets).mean()
        else:
            value_loss = clipped_value_error(
                values, remembered.old_values, remembered.targets, self.value_clip_epsilon
            ).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss + self.value_coefficient * value_loss - self.entropy_coefficient * entropy
        return loss, PyTreeDict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            approximate_kl=approximate_kl(log_ratio).mean(),
            clip_fraction=(jnp.abs(jnp.expm1(log_ratio)) > clip_epsilon).mean(dtype=jnp.float32),
        )

    def _clip_epsilon(self, progress: jax.Array) -> jax.Array | float:
        if self.final_clip_epsilon is None:
            return self.clip_epsilon
        return linear_schedule(progress, self.clip_epsilon, self.final_clip_epsilon)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], env: Env) -> Self:
        """The agent of a config, see ``configs/agent/ppo.yaml``."""
        settings = dict(config)
        network = checked_mapping(settings.pop("network", None), "agent.network")
        torso = build_torso({"hidden_sizes": (64, 64), **network})
        distribution = action_distribution(env.action_space, "PPO", squashed=False)
        return node_from_config(
            cls,
            settings,
            "agent",
            policy_network=PolicyNetwork(
                torso,
                distribution.num_parameters,
                observation_ndim(env.obs_space, settings.get("policy_obs_key")),
                state_independent_std=not distribution.is_discrete,
            ),
            value_network=ValueNetwork(torso, observation_ndim(env.obs_space, settings.get("value_obs_key"))),
            distribution=distribution,
        )


class PPOWorkflow(OnPolicyWorkflow):
    """PPO: targets once per trajectory, then several epochs of minibatches.

    Attributes:
        gae_lambda: how far advantages look ahead before they trust the value function.
        num_epochs: passes over each trajectory.
        num_minibatches: parts of each pass.
        target_kl: stop learning from a trajectory once the approximate KL divergence from the policy that collected it
            exceeds this; ``None`` never stops.
    """

    agent: PPOAgent
    gae_lambda: float = 0.95
    num_epochs: int = 4
    num_minibatches: int = 4
    target_kl: float | None = None

    ranges: ClassVar[Mapping[str, str]] = {"gae_lambda": "[0, 1]", "target_kl": "(0, inf)"}

    def __post_init__(self) -> None:
        require_positive(self, "rollout_length", "num_epochs", "num_minibatches")
        rows = self.rollout_length * self.env.num_envs
        if rows % self.num_minibatches:
            raise ValueError(
                f"num_envs * rollout_length = {rows} transitions cannot be cut into num_minibatches="
                f"{self.num_minibatches} equal parts: choose a divisor of {rows}."
            )

    @classmethod
    def make_agent(cls, config: Mapping[str, Any], env: Env) -> Agent:
        """A ``PPOAgent`` for discrete or box actions."""
        return PPOAgent.from_config(config, env)

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Epochs of minibatches over a trajectory with its advantages; all losses see the statistics that acted."""
        batch = collectives.gather_rows(self._with_targets(agent_state, trajectory), axis=1)
        remembered = batch.extras.policy_extras
        carry = (agent_state.params, opt_state, jnp.bool_(True))

        def one_minibatch(carry: Any, minibatch: SampleBatch) -> tuple[Any, PyTreeDict]:
            params, opt_state, close = carry
            minibatch = self._standardized(minibatch)
            new_params, new_opt_state, losses = gradient_step(
                self.agent.loss, self.optimizer, params, opt_state, agent_state, minibatch, progress, progress=progress
            )
            if self.target_kl is None:
                return (new_params, new_opt_state, close), losses
            close &= collectives.mean_over_shares(losses.approximate_kl) <= self.target_kl
            kept = jax.tree.map(
                lambda new, old: jnp.where(close, new, old), (new_params, new_opt_state), (params, opt_state)
            )
            return (*kept, close), losses

        (params, opt_state, _), losses = scan_minibatches(
            one_minibatch, carry, batch.flatten(), key, self.num_epochs, self.num_minibatches
        )
        metrics = jax.tree.map(jnp.mean, losses)
        metrics.explained_variance = explained_variance(remembered.old_values, remembered.targets)
        return agent_state.replace(params=params), opt_state, metrics

    def _standardized(self, minibatch: SampleBatch) -> SampleBatch:
        if not self.agent.normalize_advantages:
            return minibatch
        remembered = minibatch.extras.policy_extras
        standardized = remembered | {"advantages": standardize(remembered.advantages)}
        return minibatch.replace(extras=PyTreeDict(policy_extras=standardized))

    def _with_targets(self, agent_state: AgentState, trajectory: SampleBatch) -> SampleBatch:
        """What the losses need of a trajectory ``[T, B]``: observations, samples, advantages and value targets."""
        params = agent_state.params
        values = self.agent.values(agent_state, params, trajectory.obs)
        next_values = self.agent.values(agent_state, params, trajectory.next_obs)
        termination = trajectory.extras.env_extras.termination
        advantages, targets = gae(
            trajectory.rewards, values, next_values, termination, trajectory.dones, self.discount, self.gae_lambda
        )
        remembered = trajectory.extras.policy_extras | {
            "advantages": advantages,
            "targets": targets,
            "old_values": values,
        }
        return SampleBatch(obs=trajectory.obs, extras=PyTreeDict(policy_extras=remembered))
