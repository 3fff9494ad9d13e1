"""Renewal of off-policy learners, which restores plasticity lost through many updates per step.

Resets (Nikishin et al. 2022, https://arxiv.org/abs/2205.07802) reinitialize networks and optimizers at some points of
training and keep the replay buffer. Recycling (``evorl.workflows.recycling``) renews only dormant units. If either is
enabled, the number of updates so far is stored with the states of the optimizers.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.values import LONGEST_AXIS, whole_number
from evorl.ops.loops import when_due
from evorl.types import Key, PyTreeDict, State
from evorl.workflows.recycling import check_recycling, recycle_if_due

OffPolicyWorkflow: TypeAlias = Any  # avoids a circular import


def check_renewal(workflow: OffPolicyWorkflow) -> None:
    """Raise ``ValueError`` if an entry of ``resets`` is not a positive integer, or if ``check_recycling`` does."""
    for number in workflow.resets:
        whole_number(number, "resets", 1, LONGEST_AXIS)
    check_recycling(workflow)


def with_counts(workflow: OffPolicyWorkflow, opt_state: Any) -> Any:
    """Wrap ``opt_state`` in a dict with the update count (and dormant share), if resets or recycling are enabled."""
    if not workflow.resets and workflow.redo_interval is None:
        return opt_state
    shares = {} if workflow.redo_interval is None else {"dormant_share": jnp.zeros(())}
    return PyTreeDict(optimizers=opt_state, num_updates=jnp.zeros((), jnp.int32), **shares)


def renewed_if_due(
    workflow: OffPolicyWorkflow, state: State, learned: tuple[AgentState, Any], num_updates: jax.Array | int, key: Key
) -> tuple[AgentState, PyTreeDict]:
    """Count updates; recycle dormant units and reset the learner if due.

    Units are recycled if the count reaches a multiple of ``redo_interval``. Then, the learner is reset if the count
    reaches an entry of ``resets``. On an accelerator, each of the two waits for the host once per call.

    Args:
        workflow: off-policy workflow with ``resets`` or ``redo_interval``.
        state: state before the updates, with the entries of ``init_learning``.
        learned: states of the agent and of the optimizers after the updates.
        num_updates: number of these updates.
        key: random key, identical on all devices.

    Returns:
        The state of the agent, and the state of the optimizers with its counters, see ``with_counts``.
    """
    before, shares = state.opt_state.num_updates, PyTreeDict()
    after, interval = before + num_updates, workflow.redo_interval
    if interval is not None:
        is_due, recycling_key = after // interval > before // interval, jax.random.fold_in(key, 1)
        learned, shares["dormant_share"] = recycle_if_due(workflow, state, learned, is_due, recycling_key)
    if workflow.resets:
        numbers = jnp.asarray(workflow.resets, jnp.int32)
        is_due = ((before < numbers) & (numbers <= after)).any()
        learned = when_due(is_due, lambda learned: _reset(workflow, learned[0], jax.random.fold_in(key, 0)), learned)
    agent_state, optimizers = learned
    return agent_state, PyTreeDict(optimizers=optimizers, num_updates=after, **shares)


def _reset(workflow: OffPolicyWorkflow, agent_state: AgentState, key: Key) -> tuple[AgentState, Any]:
    """Return new states of the agent and of the optimizers.

    Networks, target networks, temperatures and batch statistics are new; observation statistics, which describe the
    contents of the replay buffer, are kept.
    """
    fresh = workflow.init_learning(key)
    statistics = agent_state.obs_preprocessor_state
    return fresh.agent_state.replace(obs_preprocessor_state=statistics), fresh.opt_state.optimizers
