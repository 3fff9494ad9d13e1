"""Updates of agents with target networks: gradient steps on parameters, and updates of their target copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.trees import hard_update, polyak_update
from evorl.types import PyTreeDict


def init_online_optimizer(optimizer: Optimizer, agent_state: AgentState) -> PyTreeDict:
    """Return the optimizer's state as ``network``, and the number of updates."""
    return PyTreeDict(network=optimizer.init(agent_state.params.online), num_updates=jnp.zeros((), jnp.int32))


def update_online_and_target(
    loss_fn: Callable[..., tuple[jax.Array, Any]],
    optimizer: Optimizer,
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    progress: jax.Array,
    tau: jax.Array | float,
    interval: int,
) -> tuple[AgentState, PyTreeDict, Any]:
    """Take a gradient step on ``loss_fn(online, agent_state, *args) -> (loss, auxiliary)``; update the target if due.

    Args:
        loss_fn: loss function.
        optimizer: optimizer of the network.
        agent_state: state with ``online`` and ``target`` in its parameters.
        opt_state: state created by ``init_online_optimizer``.
        *args: further arguments of the loss.
        progress: completed fraction of training in [0, 1].
        tau: Polyak step size of the target network; 1 copies.
        interval: number of gradient steps between two updates of the target network.

    Returns:
        The agent state, the optimizer's state and the auxiliary output of the loss.
    """
    params = agent_state.params
    online, network_opt, auxiliary = gradient_step(
        loss_fn, optimizer, params.online, opt_state.network, agent_state, *args, progress=progress
    )
    num_updates = opt_state.num_updates + 1
    updated = polyak_update(params.target, online, tau)
    target = hard_update(params.target, updated, num_updates % interval == 0)
    agent_state = agent_state.replace(params=PyTreeDict(online=online, target=target))
    return agent_state, PyTreeDict(network=network_opt, num_updates=num_updates), auxiliary


def update_part(
    name: str,
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    loss_fn: Callable[..., tuple[jax.Array, PyTreeDict]],
    optimizer: Optimizer,
    progress: jax.Array,
) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
    """Take one gradient step on one group of the agent's parameters; see ``gradient_step``.

    Args:
        name: name of the parameters, and of their optimizer's state.
        agent_state: state of the agent.
        opt_state: optimizer states by name.
        *args: further arguments of the loss.
        loss_fn: ``loss_fn(params, *args) -> (loss, metrics)``.
        optimizer: optimizer of these parameters.
        progress: completed fraction of training in [0, 1].

    Returns:
        The agent state and optimizer states with that group updated, and the metrics of the loss.
    """
    params, part_state, losses = gradient_step(
        loss_fn, optimizer, agent_state.params[name], opt_state[name], *args, progress=progress
    )
    agent_state = agent_state.replace(params=agent_state.params.replace(**{name: params}))
    return agent_state, opt_state.replace(**{name: part_state}), losses


def with_target_networks(params: PyTreeDict, tau: jax.Array | float) -> PyTreeDict:
    """Update all target networks: parameters ``target_<name>`` move towards ``<name>``.

    Args:
        params: parameters by name.
        tau: Polyak step size of the target networks.
    """
    targets = [name for name in params if name.startswith("target_")]
    return params.replace(**{x: polyak_update(params[x], params[x.removeprefix("target_")], tau) for x in targets})
