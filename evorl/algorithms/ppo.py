"""Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Trains for several epochs on each trajectory. Clipping the probability ratio between the current policy and the policy
that collected the trajectory keeps the two close. Advantages are estimated by GAE.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from evorl.agent import AgentState
from evorl.agents.actor_critic import ActorCriticAgent, ActorCriticBatch
from evorl.agents.adaptive_kl import adaptive_gradient_step, check_adaptive, init_adaptive, with_policies
from evorl.agents.part_settings import QuantileActorCriticSettings
from evorl.config.values import require_positive
from evorl.fields import Within
from evorl.ops import collectives
from evorl.ops.losses import (
    approximate_kl,
    clipped_surrogate,
    clipped_value_error,
    drift_surrogate,
    explained_variance,
    squared_error,
)
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.schedules import Schedule, value_at
from evorl.ops.trees import means, tree_where
from evorl.ops.value_distributions import returns_quantile_huber
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params, PyTreeDict, PyTreeNode, pytree_field
from evorl.workflows.on_policy import ActorCriticWorkflow, Begin, ScheduleStep, scan_separately, scan_updates

_PARTS = ("policy", "value")


class PPOAgent(ActorCriticAgent):
    """A stochastic policy and a value function.

    Attributes:
        surrogate: objective of the policy: ``clip`` for the clipped ratio, or ``dpo`` for the drift function of
            discovered policy optimization (Lu et al. 2022), which does not depend on ``clip_epsilon``.
        clip_epsilon: the probability ratio is clipped to ``[1 - clip_epsilon, 1 + clip_epsilon]``.
        value_clip_epsilon: the value loss clips values to this distance from the values at collection; ``None``
            disables clipping. For quantiles, the error at which the Huber loss turns linear; ``None`` means 1.
        value_coefficient: weight of the value loss.
        value_l2: weight of the sum of squared parameters of the value network (its head, if shared); ``None`` for 0.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantages: standardize advantages in each minibatch.
    """

    surrogate: Literal["clip", "dpo"] = pytree_field(static=True, default="clip")
    clip_epsilon: Annotated[float | Schedule, Within("(0, inf)")] = 0.2
    value_clip_epsilon: Annotated[float | None, Within("(0, inf)")] = None
    value_coefficient: Annotated[float, Within("[0, inf)")] = 0.5
    value_l2: Annotated[float | None, Within("[0, inf)")] = None
    entropy_coefficient: float | Schedule = 0.0
    normalize_advantages: bool = True

    part_settings: ClassVar[PyTreeNode] = QuantileActorCriticSettings()

    def loss(
        self, params: Params, agent_state: AgentState, batch: ActorCriticBatch, progress: jax.Array
    ) -> tuple[jax.Array, PyTreeDict]:
        """Return a minibatch's loss, surrogate + value error - entropy bonus (eq. 9) + L2 penalty, and its metrics."""
        policy, values, _, quantiles = self.estimates_of_batch(agent_state, params, batch)
        log_ratio = policy.log_prob(batch.raw_actions) - batch.log_probs
        clip_epsilon = value_at(self.clip_epsilon, progress)
        clipped = functools.partial(clipped_surrogate, clip_epsilon=clip_epsilon)
        surrogate = clipped if self.surrogate == "clip" else drift_surrogate
        policy_loss = surrogate(log_ratio, batch.advantages).mean()
        if quantiles is not None:
            value_loss = returns_quantile_huber(quantiles, batch.targets, self.value_clip_epsilon).mean()
        elif self.value_clip_epsilon is None:
            value_loss = squared_error(values, batch.targets).mean()
        else:
            value_loss = clipped_value_error(values, batch.values, batch.targets, self.value_clip_epsilon).mean()
        entropy, entropy_coefficient = policy.entropy().mean(), value_at(self.entropy_coefficient, progress)
        loss = policy_loss + self.value_coefficient * value_loss - entropy_coefficient * entropy
        if self.value_l2 is not None:
            loss += self.value_l2 * optax.tree.norm(params["value"], squared=True)
        losses = PyTreeDict(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            approximate_kl=approximate_kl(log_ratio).mean(),
            clip_fraction=(jnp.abs(jnp.expm1(log_ratio)) > clip_epsilon).mean(dtype=jnp.float32),
        )
        return loss, losses if batch.policy is None else losses | {"kl": batch.policy.kl(policy).mean()}


class PPOWorkflow(ActorCriticWorkflow):
    """PPO: computes targets once per trajectory, then trains for several epochs of minibatches.

    Attributes:
        gae_lambda: lambda of generalized advantage estimation (GAE).
        num_epochs: number of passes (epochs) over each trajectory.
        num_value_epochs: passes of the value function over each trajectory; ``num_epochs`` then counts passes of the
            policy. Each network then has a separate optimizer with the same settings, and the network with more passes
            continues alone. ``None`` updates both together in ``num_epochs`` passes.
        num_minibatches: number of minibatches per epoch.
        schedule_step: schedules of optimizer and loss advance once per trajectory (``environment``) or with every
            gradient step (``update``); in both cases they span the whole training run.
        whole_trajectories: minibatches contain whole trajectories of some environments instead of single steps;
            recurrent agents always use whole trajectories.
        target_kl: if the estimated KL divergence between collecting and current policy on a minibatch exceeds this
            value, skip its update and all later ones on the trajectory, except value-only passes; ``None`` never skips.
        desired_kl: adapt the learning rate before each gradient step, within [1e-5, 1e-2], to keep the KL divergence
            from the policy that collected the trajectory near this value; ``None`` uses the optimizer's learning rate.
    """

    agent: PPOAgent
    total_timesteps: float = 2e5
    optimizer: Optimizer = Optimizer(learning_rate=Schedule(3e-4, 0.0), max_grad_norm=0.5, epsilon=1e-5)
    gae_lambda: Annotated[float, Within("[0, 1]")] = 0.95
    num_epochs: int = 4
    num_value_epochs: int | None = None
    num_minibatches: int = 4
    schedule_step: ScheduleStep = "environment"
    whole_trajectories: bool = False
    target_kl: Annotated[float | None, Within("(0, inf)")] = None
    desired_kl: Annotated[float | None, Within("(0, inf)")] = None

    default_num_envs: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_equal_minibatches(self.num_minibatches, self._by_trajectory)
        if self.desired_kl is not None:
            check_adaptive(self.optimizer, self.desired_kl, self.num_value_epochs)
        if self.num_value_epochs is not None:
            require_positive(self, "num_value_epochs")
            if self.agent.network.shared is not None:
                raise ValueError(
                    f"num_value_epochs={self.num_value_epochs} needs a separate value network, but "
                    "agent.network.shared=true shares it with the policy: set agent.network.shared=false, or remove "
                    "num_value_epochs."
                )

    @property
    def _by_trajectory(self) -> bool:
        return self.whole_trajectories or self.agent.is_recurrent

    def init_optimizers(self, agent_state: AgentState) -> Any:
        """Return the optimizer state: one per network with ``num_value_epochs``, adaptive with ``desired_kl``."""
        if self.desired_kl is not None:
            return init_adaptive(self.optimizer, agent_state.params)
        if self.num_value_epochs is None:
            return super().init_optimizers(agent_state)
        return PyTreeDict({part: self.optimizer.init(PyTreeDict({part: agent_state.params[part]})) for part in _PARTS})

    def learn_from(
        self, agent_state: AgentState, opt_state: Any, trajectory: SampleBatch, key: Key, progress: jax.Array
    ) -> tuple[AgentState, Any, PyTreeDict]:
        """Train for several epochs of minibatches on a trajectory and its advantages."""
        batch = self.agent.batch_with_advantages(agent_state, trajectory, self.discount, self.gae_lambda)
        if self.desired_kl is not None:
            batch = with_policies(self.agent, agent_state, batch)
        batch = collectives.gather_rows(batch, axis=1)
        carry = (agent_state.params, opt_state, jnp.bool_(True))

        def one_minibatch(carry: Any, minibatch: ActorCriticBatch, progress: jax.Array, part: str = "") -> Any:
            params, opt_state, is_near = carry
            if self.agent.normalize_advantages:
                minibatch = minibatch.with_standardized_advantages()
            step = self._step_together if self.num_value_epochs is None else functools.partial(self._step_apart, part)
            *new, losses = step(params, opt_state, agent_state, minibatch, progress)
            if self.target_kl is None or part == "value":
                return (*new, is_near), losses
            if self.desired_kl is not None:  # the first skipped update still adapts the learning rate
                opt_state = opt_state.replace(learning_rate=tree_where(is_near, new[1], opt_state).learning_rate)
            is_near &= collectives.mean_over_shares(losses.approximate_kl) <= self.target_kl
            params, opt_state = tree_where(is_near, tuple(new), (params, opt_state))
            return (params, opt_state, is_near), losses

        rows, begin = batch if self._by_trajectory else batch.flatten(), Begin(key, progress, self._by_trajectory)
        scan = scan_updates if self.num_value_epochs is None else scan_separately
        (params, opt_state, _), losses = scan(self, one_minibatch, carry, rows, begin)
        metrics = means(losses) | {"explained_variance": explained_variance(batch.values, batch.targets)}
        return agent_state.replace(params=params), opt_state, metrics

    def _step_together(self, params: Params, opt_state: Any, *inputs: Any) -> tuple[Params, Any, PyTreeDict]:
        trained = (self.agent.loss, self.step_optimizer, params, opt_state)
        if self.desired_kl is not None:
            return adaptive_gradient_step(self.desired_kl, *trained, *inputs)
        return gradient_step(*trained, *inputs, progress=inputs[-1])

    def _step_apart(self, part: str, params: Params, opt_state: Any, *inputs: Any) -> tuple[Params, Any, PyTreeDict]:
        """Update the network ``part``, or both networks if ``part`` is empty, each with a separate optimizer state."""
        updated, states, losses = {}, {}, PyTreeDict()

        def loss(trained: Params) -> tuple[jax.Array, PyTreeDict]:
            return self.agent.loss(params.replace(**trained), *inputs)

        for name in (part,) if part else _PARTS:
            optimizer = self.step_optimizer if name == "value" else self.optimizer
            subset = PyTreeDict({name: params[name]})
            subset, states[name], losses = gradient_step(loss, optimizer, subset, opt_state[name], progress=inputs[-1])
            updated |= subset
        return params.replace(**updated), opt_state.replace(**states), losses
