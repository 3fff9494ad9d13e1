"""One update of algorithms with a network and a slow copy: the parameters are ``online`` and ``target``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.ops.optimization import Optimizer, gradient_step
from evorl.ops.target_update import hard_update, polyak_update
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
    """A gradient step on ``loss_fn(online, agent_state, *args) -> (loss, auxiliary)``, and one of the slow copy if due.

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
