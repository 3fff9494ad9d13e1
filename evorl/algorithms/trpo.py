"""Trust region policy optimization (Schulman et al. 2015, https://arxiv.org/abs/1502.05477) with GAE.

Each update is a natural-gradient step on the surrogate objective, constrained in KL divergence from the policy that
collected the trajectory. ``kind`` selects the source of the Fisher matrix: second derivatives of the divergence
(``trpo-d2``), or first derivatives of log-probabilities (``trpo-d1``). ``ppo`` takes clipped gradient steps instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent, ActorCriticBatch
from evorl.config.values import require_positive
from evorl.envs.env import Env
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import approximate_kl, clipped_surrogate, explained_variance, extend_linearly, squared_error
from evorl.ops.natural_gradient import TrustRegion, hessian_product, score_product
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.schedules import Schedule
from evorl.ops.trees import means
from evorl.sample_batch import SampleBatch, first_episodes
from evorl.types import Key, Params, PyTreeDict
from evorl.workflows.on_policy import Begin, OnPolicyWorkflow, Passes, ScheduleStep, scan_updates


class TRPOAgent(ActorCriticAgent):
    """A stochastic policy and a value function with separate networks.

    Losses take the parameters of one of the two networks, and batches ``[T, B]`` or ``[N]`` with ``weights``.

    Attributes:
        normalize_advantages: standardize advantages over each trajectory.
        clip_epsilon: with ``kind=ppo``, the probability ratio is clipped to ``[1 - clip_epsilon, 1 + clip_epsilon]``.
    """

    normalize_advantages: bool = True
    clip_epsilon: Annotated[float, Within("(0, inf)")] = 0.2

    @classmethod
    def parts(cls, settings: dict[str, Any], env: Env) -> dict[str, Any]:
        """Build the actor-critic network; raise ``ValueError`` if ``network.shared`` is true."""
        parts = super().parts(settings, env)
        if parts["network"].shared is not None:
            raise ValueError(
                "agent.network.shared=true is not supported by TRPO: its update bounds the change of the policy, but "
                "training a value function on the same layers would change the policy further. Set it to false, or use "
                "PPO."
            )
        return parts

    def policy_along(self, policy_params: Params, agent_state: AgentState, batch: ActorCriticBatch) -> Any:
        """Return the action distributions for the observations of a batch ``[T, B]`` or ``[N]``."""
        return self.estimates_of_batch(agent_state, agent_state.params.replace(policy=policy_params), batch).policy

    def log_ratio(self, policy_params: Params, agent_state: AgentState, batch: ActorCriticBatch) -> jax.Array:
        """Return ``log pi(a|s) - log pi_old(a|s)`` of the batch's actions."""
        policy = self.policy_along(policy_params, agent_state, batch)
        return policy.log_prob(batch.raw_actions) - batch.log_probs

    def surrogate(self, policy_params: Params, agent_state: AgentState, batch: ActorCriticBatch) -> jax.Array:
        """Return the weighted mean of ``pi(a|s) / pi_old(a|s) A`` (eq. 14 of the paper)."""
        ratio = extend_linearly(jnp.exp, self.log_ratio(policy_params, agent_state, batch))
        return (batch.weights * ratio * batch.advantages).mean()

    def divergence(self, policy_params: Params, agent_state: AgentState, batch: ActorCriticBatch) -> jax.Array:
        """Return the weighted mean of ``KL(pi_old || pi)`` over the observations (section 4)."""
        old = self.policy_along(agent_state.params.policy, agent_state, batch)
        return (batch.weights * old.kl(self.policy_along(policy_params, agent_state, batch))).mean()

    def clipped_loss(
        self, policy_params: Params, agent_state: AgentState, batch: ActorCriticBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the clipped surrogate loss (Schulman et al. 2017, eq. 7), and metrics with an estimate ``kl``."""
        log_ratio = self.log_ratio(policy_params, agent_state, batch)
        losses = clipped_surrogate(log_ratio, batch.advantages, self.clip_epsilon)
        loss = (batch.weights * losses).mean()
        return loss, PyTreeDict(policy_loss=loss, kl=(batch.weights * approximate_kl(log_ratio)).mean())

    def value_loss(
        self, value_params: Params, agent_state: AgentState, batch: ActorCriticBatch
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return the weighted mean of ``(V(s) - G)^2`` for the value targets ``G`` by GAE, and metrics."""
        values = self.estimates_of_batch(agent_state, agent_state.params.replace(value=value_params), batch).values
        loss = (batch.weights * squared_error(values, batch.targets)).mean()
        return loss, PyTreeDict(value_loss=loss)


class TRPOWorkflow(OnPolicyWorkflow):
    """TRPO: for each trajectory, updates the policy, by default in one step, then the value function in minibatches.

    Attributes:
        optimizer: optimizer of the value function.
        policy_optimizer: optimizer of the policy with ``kind=ppo``; unused otherwise.
        kind: update of the policy: natural gradient from second derivatives of the divergence (``trpo-d2``) or from
            first derivatives of the log-probabilities (``trpo-d1``), or clipped gradient steps (``ppo``).
        linesearch: start of the line search: the full step (``origin``), or near the last accepted fraction
            (``adaptive``).
        trust_region: size of the natural-gradient step and settings of the line search.
        episodes_per_batch: number of complete episodes to learn from: the first episode of every environment, then the
            second ones, and so on. Each trajectory then starts with new episodes, and other steps are ignored. ``None``
            learns from every step.
        gae_lambda: lambda of generalized advantage estimation (GAE).
        num_epochs: passes of the value function and, with ``kind=ppo``, of the policy over each trajectory.
        num_value_epochs: passes of the value function over each trajectory; ``None`` means ``num_epochs``.
        num_minibatches: number of minibatches per epoch.
        schedule_step: schedules of the optimizers advance once per trajectory (``environment``) or with every gradient
            step (``update``); in both cases they span the whole training run.
    """

    agent: TRPOAgent
    total_timesteps: float = 1e5
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    policy_optimizer: Optimizer = Optimizer(learning_rate=Schedule(1e-3, 0.0), max_grad_norm=0.5, epsilon=1e-5)
    kind: Literal["ppo", "trpo-d1", "trpo-d2"] = "trpo-d2"
    linesearch: Literal["origin", "adaptive"] = "origin"
    trust_region: TrustRegion = TrustRegion()
    episodes_per_batch: int | None = None
    gae_lambda: Annotated[float, Within("[0, 1]")] = 0.95
    num_epochs: int = 10
    num_value_epochs: int | None = None
    num_minibatches: int = 8
    schedule_step: ScheduleStep = "environment"

    default_num_envs: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_equal_minibatches(self.num_minibatches, self.agent.is_recurrent)
        if self.num_value_epochs is not None:
            require_positive(self, "num_value_epochs")
        if self.episodes_per_batch is None:
            return
        require_positive(self, "episodes_per_batch")
        limit, per_env = self.env.max_episode_steps, math.ceil(self.episodes_per_batch / self.env.num_envs)
        if limit is None or per_env * limit > self.rollout_length:
            length = "has no time limit (set env.max_episode_steps)" if limit is None else f"takes up to {limit} steps"
            raise ValueError(
                f"episodes_per_batch={self.episodes_per_batch} with num_envs={self.env.num_envs} needs {per_env} "
                f"episodes per environment, and an episode here {length}: rollout_length={self.rollout_length} may be "
                "too short. Choose fewer episodes, more environments, longer rollouts or a shorter time limit."
            )

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """Return the optimizers' states and, unless ``kind`` is ``ppo``, the line search's first fraction, 1."""
        opt_state = PyTreeDict(value=self.optimizer.init(agent_state.params.value))
        if self.kind == "ppo":
            return opt_state | {"policy": self.policy_optimizer.init(agent_state.params.policy)}
        return opt_state | {"first_fraction": jnp.ones(())}

    @property
    def restarts_episodes(self) -> bool:
        """True if each trajectory starts with new episodes, because the agent learns from complete episodes."""
        return self.episodes_per_batch is not None

    def _weights(self, dones: jax.Array) -> jax.Array:
        """Return weights of steps ``[T, B]``, with mean 1 over all devices, 0 for steps that the losses ignore."""
        if self.episodes_per_batch is None:
            return jnp.ones_like(dones, jnp.float32)
        num_envs = self.env.num_envs
        chosen = first_episodes(dones, self.episodes_per_batch, collectives.local_indices(num_envs), num_envs)
        return chosen / collectives.mean_over_shares(chosen.mean(dtype=jnp.float32))

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Update the policy, then the value function; the losses use the observation statistics of the rollout."""
        batch = self.agent.batch_with_advantages(agent_state, trajectory, self.discount, self.gae_lambda)
        batch = batch.replace(weights=self._weights(trajectory.dones))
        if self.agent.normalize_advantages:
            batch = batch.with_standardized_advantages()
        whole = collectives.gather_rows(batch, axis=1)
        policy_key, value_key = jax.random.split(key)
        params, begin = agent_state.params, Begin(policy_key, progress, self.agent.is_recurrent)
        if self.kind == "ppo":
            loss = functools.partial(self.agent.clipped_loss, agent_state=agent_state)
            trained = (params.policy, opt_state.policy)
            policy, policy_state, metrics = self._gradient_steps(
                loss, self.policy_optimizer, trained, whole, begin, self.num_epochs
            )
            opt_state = opt_state.replace(policy=policy_state)
        else:
            policy, first_fraction, metrics = self._natural_step(agent_state, opt_state, batch, trajectory.dones)
            opt_state = opt_state.replace(first_fraction=first_fraction)
        loss, num_epochs = functools.partial(self.agent.value_loss, agent_state=agent_state), self.num_value_epochs
        trained, begin = (params.value, opt_state.value), begin._replace(key=value_key)
        value, value_state, value_losses = self._gradient_steps(
            loss, self.optimizer, trained, whole, begin, num_epochs or self.num_epochs
        )
        explained = explained_variance(whole.values, whole.targets, whole.weights)
        metrics |= value_losses | {"explained_variance": explained}
        params = params.replace(policy=policy, value=value)
        return agent_state.replace(params=params), opt_state.replace(value=value_state), metrics

    def _gradient_steps(
        self,
        loss: Callable[..., tuple[jax.Array, PyTreeDict]],
        optimizer: Optimizer,
        trained: tuple[Params, Any],
        batch: ActorCriticBatch,
        begin: Begin,
        num_epochs: int,
    ) -> tuple[Params, Any, PyTreeDict]:
        """Train on ``loss(params, batch=minibatch)``; return parameters, optimizer state and mean losses."""

        def one_minibatch(carry: Any, minibatch: ActorCriticBatch, progress: jax.Array) -> tuple[Any, PyTreeDict]:
            loss_of_batch = functools.partial(loss, batch=minibatch)
            *carry, losses = gradient_step(loss_of_batch, optimizer, *carry, progress=progress)
            return tuple(carry), losses

        rows = batch if begin.by_trajectory else batch.flatten()
        passes = Passes(0, num_epochs, num_epochs)
        trained, losses = scan_updates(self, one_minibatch, trained, rows, begin, passes)
        return *trained, means(losses)

    def _natural_step(
        self, agent_state: AgentState, opt_state: Any, batch: ActorCriticBatch, dones: jax.Array
    ) -> tuple[Params, jax.Array, PyTreeDict]:
        """Take a natural-gradient step; return the policy, the next line search's first step fraction, and metrics."""
        agent, old = self.agent, agent_state.params.policy
        surrogate, gradient = jax.value_and_grad(agent.surrogate)(old, agent_state, batch)
        if self.kind == "trpo-d2":
            product = hessian_product(lambda policy: agent.divergence(policy, agent_state, batch), old)
        else:
            weights = batch.weights
            product = score_product(lambda policy: agent.log_ratio(policy, agent_state, batch), old, dones, weights)

        def evaluate(policy: Params) -> tuple[jax.Array, jax.Array]:
            gain = agent.surrogate(policy, agent_state, batch) - surrogate
            return collectives.mean_over_shares((gain, agent.divergence(policy, agent_state, batch)))

        step = self.trust_region.step(product, collectives.mean_over_shares(gradient))
        first_fraction = opt_state.first_fraction
        accepted = self.trust_region.search(evaluate, old, step, first_fraction)
        if self.linesearch == "adaptive":
            first_fraction = self.trust_region.next_first_fraction(accepted)
        gain, divergence = evaluate(accepted.params)
        return accepted.params, first_fraction, PyTreeDict(gain=gain, kl=divergence, step_fraction=accepted.fraction)
