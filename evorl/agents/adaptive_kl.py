"""Learning rates that keep the change of a policy per trajectory near a desired KL divergence.

The rule is that of rsl_rl (Rudin et al. 2022, https://arxiv.org/abs/2109.11978): before each gradient step, the
learning rate decreases if the policy is too far from the policy that collected the trajectory, and increases if it is
too close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.agents.actor_critic import ROWS_AT_ONCE, ActorCriticAgent, ActorCriticBatch
from evorl.ops import collectives
from evorl.ops.optimization import Optimizer
from evorl.ops.platform import on_cpu
from evorl.ops.schedules import Schedule
from evorl.types import Params, PyTreeDict

FACTOR = 1.5  # one change multiplies or divides the learning rate by this factor
LOWEST, HIGHEST = 1e-5, 1e-2  # bounds of the learning rate


def check_adaptive(optimizer: Optimizer, desired_kl: Any, num_value_epochs: int | None) -> None:
    """Raise ``ValueError`` if ``desired_kl`` is combined with a schedule, rprop or ``num_value_epochs``."""
    if isinstance(optimizer.learning_rate, Schedule):
        raise ValueError(
            f"desired_kl={desired_kl!r} determines the learning rate, but optimizer.learning_rate is a schedule: set "
            f"it to a number, the initial value, such as optimizer.learning_rate={optimizer.learning_rate.start!r}."
        )
    if optimizer.name == "rprop":
        raise ValueError(
            f"desired_kl={desired_kl!r} changes the learning rate in training, but rprop only uses the initial one: "
            "choose another optimizer.name, such as adam."
        )
    if num_value_epochs is not None:
        raise ValueError(
            f"desired_kl={desired_kl!r} determines the learning rate of one optimizer, but num_value_epochs="
            f"{num_value_epochs} creates two optimizers: remove one of these settings."
        )


def init_adaptive(optimizer: Optimizer, params: Params) -> PyTreeDict:
    """Return ``optimizer``, the initial state of the optimizer, and ``learning_rate``, float32, as a dict."""
    return PyTreeDict(optimizer=optimizer.init(params), learning_rate=jnp.asarray(optimizer.learning_rate, jnp.float32))


def with_policies(agent: ActorCriticAgent, agent_state: AgentState, batch: ActorCriticBatch) -> ActorCriticBatch:
    """Return the batch of a trajectory ``[T, B]`` with the current action distributions as ``policy``."""
    num_steps, num_envs = batch.log_probs.shape
    at_once = max(1, ROWS_AT_ONCE // num_envs)
    if on_cpu() or agent.is_recurrent or at_once >= num_steps:
        return batch.replace(policy=agent.estimates_of_batch(agent_state, agent_state.params, batch).policy)

    def of_step(obs: Any) -> Any:
        return agent.policy(agent_state, agent_state.params, obs)

    return batch.replace(policy=jax.lax.map(of_step, batch.obs, batch_size=at_once))


def rate_after(rate: jax.Array, divergence: jax.Array, desired: jax.Array | float) -> jax.Array:
    """Return the learning rate, a scalar, given the measured and the desired divergence.

    The learning rate is divided by 1.5 if the divergence exceeds ``2 desired``, and multiplied by 1.5 if the divergence
    is between 0 and ``desired / 2``, within [1e-5, 1e-2].
    """
    lower, higher = jnp.maximum(LOWEST, rate / FACTOR), jnp.minimum(HIGHEST, rate * FACTOR)
    is_near = (divergence > 0.0) & (divergence < desired / 2.0)
    return jnp.where(divergence > 2.0 * desired, lower, jnp.where(is_near, higher, rate))


def adaptive_gradient_step(
    desired_kl: jax.Array | float,
    loss_fn: Callable[..., tuple[jax.Array, PyTreeDict]],
    optimizer: Optimizer,
    params: Params,
    opt_state: PyTreeDict,
    agent_state: AgentState,
    *args: Any,
) -> tuple[Params, PyTreeDict, PyTreeDict]:
    """Take one gradient step, with the learning rate adapted to the current divergence.

    The first step on a trajectory leaves the learning rate unchanged: before it, the divergence is only rounding error,
    which differs between numbers of devices.

    Args:
        desired_kl: desired divergence.
        loss_fn: ``(params, agent_state, *args) -> (loss, metrics)``, where ``metrics.kl`` is the mean over the
            minibatch of ``KL(old || new)``, from the policy that collected the trajectory to that of ``params``.
        optimizer: optimizer; its learning rate is replaced by that of ``opt_state``, adapted.
        params: parameters to train.
        opt_state: state created by ``init_adaptive``.
        agent_state: state of the agent that collected the trajectory, with the parameters before the first step.
        *args: additional arguments of the loss.

    Returns:
        Parameters, optimizer state, and the metrics with the ``learning_rate`` of this step.
    """
    gradients, metrics = jax.grad(loss_fn, has_aux=True)(params, agent_state, *args)
    gradients, divergence = collectives.mean_over_shares((gradients, metrics.kl))
    adapted = rate_after(opt_state.learning_rate, divergence, desired_kl)
    is_first = jax.tree.reduce(jnp.logical_and, jax.tree.map(jnp.array_equal, params, agent_state.params))
    rate = jnp.where(is_first, opt_state.learning_rate, adapted)
    params, state = optimizer.replace(learning_rate=rate).apply(gradients, opt_state.optimizer, params)
    return params, PyTreeDict(optimizer=state, learning_rate=rate), metrics | {"learning_rate": rate}
