"""Updates of agents with target networks: of one group of parameters, and of the copies that follow."""

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
    """The optimizer's state as ``network``, and a count of the updates."""
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
    """A gradient step on ``loss_fn(online, agent_state, *args) -> (loss, auxiliary)``; the target follows if due.

    Args:
        loss_fn: the loss.
        optimizer: of the network.
        agent_state: with ``online`` and ``target`` in its parameters.
        opt_state: that of ``init_online_optimizer``.
        *args: further arguments of the loss.
        progress: share of the training that is over.
        tau: share of the network in its copy after an update; 1 copies.
        interval: updates between two of the copy.

    Returns:
        The agent, the optimizer's state and the auxiliary output of the loss.
    """
    params = agent_state.params
    online, network_opt, auxiliary = gradient_step(
        loss_fn, optimizer, params.online, opt_state.network, agent_state, *args, progress=progress
    )
    num_updates = opt_state.num_updates + 1
    followed = polyak_update(params.target, online, tau)
    target = hard_update(params.target, followed, num_updates % interval == 0)
    agent_state = agent_state.replace(params=PyTreeDict(online=online, target=target))
    return agent_state, PyTreeDict(network=network_opt, num_updates=num_updates), auxiliary


def update_part(
    part: tuple[str, Callable[..., tuple[jax.Array, PyTreeDict]], Optimizer],
    agent_state: AgentState,
    opt_state: PyTreeDict,
    *args: Any,
    progress: jax.Array,
) -> tuple[AgentState, PyTreeDict, PyTreeDict]:
    """One gradient step of some of the agent's parameters; see ``gradient_step``.

    Args:
        part: the name of the parameters, ``loss_fn(params, *args) -> (loss, what it reports)``, and the optimizer.
        agent_state: the agent.
        opt_state: the optimizers' states by name.
        *args: of the loss.
        progress: the share of the training that is over.

    Returns:
        The agent and the optimizers' states with that part changed, and what the loss reports.
    """
    name, loss_fn, optimizer = part
    params, part_state, losses = gradient_step(
        loss_fn, optimizer, agent_state.params[name], opt_state[name], *args, progress=progress
    )
    agent_state = agent_state.replace(params=agent_state.params.replace(**{name: params}))
    return agent_state, opt_state.replace(**{name: part_state}), losses


def with_target_networks(params: PyTreeDict, tau: jax.Array | float) -> PyTreeDict:
    """Parameters whose target networks have followed: those called ``target_<name>`` by a share of ``<name>``.

    Args:
        params: by name.
        tau: share of the present parameters in the target networks after the update.
    """
    targets = [name for name in params if name.startswith("target_")]
    return params.replace(**{x: polyak_update(params[x], params[x.removeprefix("target_")], tau) for x in targets})
