"""Recycling of dormant units (ReDo) in the networks of off-policy learners, see ``evorl.networks.dormant_units``."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.values import positive
from evorl.networks.dormant_units import Recycled, check_recyclable, recycle_dormant_units
from evorl.networks.q_networks import EnsembleQNetwork
from evorl.ops.loops import when_due
from evorl.types import Key, State

OffPolicyWorkflow: TypeAlias = Any  # avoids a circular import
BATCH_SIZE = 256  # transitions per recycling, as in the paper
# Names of entries in the optimizers' states, by names of the parameters.
_OPTIMIZERS = {"policy": ("policy", "actor"), "critic": ("critic",), "online": ("network",)}
_TORSOS = {"policy": "agent.network.torso", "critic": "agent.critic_network.torso", "online": "agent.network.torso"}


def check_recycling(workflow: OffPolicyWorkflow) -> None:
    """Raise ``ValueError`` if ``redo_interval`` is set but not positive, or the networks do not support recycling."""
    if workflow.redo_interval is None:
        return
    positive(workflow.redo_interval, "redo_interval")
    networks = getattr(workflow.agent, "recyclable_networks", dict)()
    if not networks:
        raise ValueError(
            f"redo_interval={workflow.redo_interval} is not supported by {type(workflow).__name__}, whose networks "
            "have no units that can be recycled: set redo_interval=null."
        )
    for name, network in networks.items():
        check_recyclable(network, _TORSOS[name])


def recycle_if_due(
    workflow: OffPolicyWorkflow, state: State, learned: tuple[AgentState, Any], is_due: jax.Array, key: Key
) -> tuple[tuple[AgentState, Any], jax.Array]:
    """Recycle the dormant units of the agent's policy and value networks, if ``is_due``, a bool scalar.

    Target networks are unchanged. In the optimizers' states, moments of new weights restart; counts are kept.

    Args:
        workflow: off-policy workflow with ``redo_interval``.
        state: state with the replay buffer and the last fraction of dormant units, ``opt_state.dormant_share``.
        learned: states of the agent and of the optimizers.
        is_due: True if units are recycled now.
        key: random key, identical on all devices.

    Returns:
        The new states of agent and optimizers, and the fraction of dormant units at the last recycling.
    """

    def recycle(carry: tuple[AgentState, Any, jax.Array]) -> tuple[AgentState, Any, jax.Array]:
        agent_state, optimizers, _ = carry
        batch_key, weights_key = jax.random.split(key)
        rows, envs = workflow.replay_buffer.draw_indices(state.replay_state, batch_key, BATCH_SIZE)
        batch = workflow.take(state.replay_state, rows, envs)
        inputs, shares = workflow.agent.recyclable_inputs(agent_state, batch), []
        fresh = workflow.init_optimizers(agent_state)
        for i, (name, network) in enumerate(workflow.agent.recyclable_networks().items()):
            own_key = jax.random.fold_in(weights_key, i)
            recycled = _recycled(network, agent_state.params[name], inputs[name], workflow.redo_threshold, own_key)
            agent_state = agent_state.replace(params=agent_state.params.replace(**{name: recycled.params}))
            (entry,) = (x for x in _OPTIMIZERS[name] if x in optimizers)
            optimizers = optimizers.replace(**{entry: _restarted(optimizers[entry], fresh[entry], recycled.is_new)})
            shares.append(recycled.share)
        return agent_state, optimizers, jnp.stack(shares).mean()

    *renewed, share = when_due(is_due, recycle, (*learned, state.opt_state.dormant_share))
    return (renewed[0], renewed[1]), share


def _recycled(network: Any, params: Any, inputs: tuple[Any, ...], threshold: Any, key: Key) -> Recycled:
    """Recycle units of a network, or of each ensemble member according to that member's activations."""
    if not isinstance(network, EnsembleQNetwork):
        return recycle_dormant_units(network, params, inputs, threshold, key)
    members, keys = params["params"]["members"], jax.random.split(key, network.num_critics)

    def of_member(member: Any, key: Key) -> Recycled:
        return recycle_dormant_units(network.member(), {"params": member}, inputs, threshold, key)

    recycled = jax.vmap(of_member)(members, keys)
    new, is_new = (type(params)({"params": {"members": x["params"]}}) for x in (recycled.params, recycled.is_new))
    return Recycled(new, is_new, recycled.share.mean())


def _restarted(opt_state: Any, fresh: Any, is_new: Any) -> Any:
    """Return an optimizer's state with the values of ``fresh`` for new weights, in each array that has one per weight.

    A part like the parameters may also have other arrays, such as one number per layer (novograd), which are kept.
    """
    structure = jax.tree.structure(is_new)

    def restarted(x: Any, initial: Any) -> Any:
        if jax.tree.structure(x) != structure:
            return x
        return jax.tree.map(lambda new, x, y: jnp.where(new, y, x) if x.shape == new.shape else x, is_new, x, initial)

    return jax.tree.map(restarted, opt_state, fresh, is_leaf=lambda x: jax.tree.structure(x) == structure)
