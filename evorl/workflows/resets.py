"""Resets of off-policy learners (Nikishin et al. 2022, https://arxiv.org/abs/2205.07802): networks and optimizers are
initialized anew at some points of the training, while the replay buffer is kept.

A reset restores the plasticity that many updates per step cost. The number of updates so far is stored with the
optimizers, only if resets are set.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.config.values import LONGEST_AXIS, whole_number
from evorl.ops.loops import when_due
from evorl.types import Key, PyTreeDict

OffPolicyWorkflow: TypeAlias = Any  # its module imports this one


def check_resets(resets: Any) -> None:
    """Raise ``ValueError`` if a number of updates is not a positive integer."""
    for number in resets:
        whole_number(number, "resets", 1, LONGEST_AXIS)


def with_count(resets: tuple[int, ...], opt_state: Any) -> Any:
    """Return the state of the optimizers, with a count of the updates if there are ``resets``."""
    return PyTreeDict(optimizers=opt_state, num_updates=jnp.zeros((), jnp.int32)) if resets else opt_state


def reset_if_due(
    workflow: OffPolicyWorkflow,
    agent_state: AgentState,
    optimizers: Any,
    counts: tuple[jax.Array, jax.Array | int],
    key: Key,
) -> tuple[AgentState, PyTreeDict]:
    """Count updates, and initialize the learner anew if they reach one of the workflow's ``resets``.

    Networks, target networks, temperatures, statistics of batches and optimizers are new; statistics of observations,
    which describe the contents of the replay buffer, are kept. An accelerator waits for the host once per call, not
    once per update.

    Args:
        workflow: off-policy workflow with ``resets``.
        agent_state: state of the agent after the updates.
        optimizers: state of the optimizers after the updates.
        counts: number of all updates before, int32, and number of these updates.
        key: random key of the new parameters, equal on all devices.

    Returns:
        The state of the agent, and that of the optimizers with the count, see ``with_count``.
    """
    before, numbers = counts[0], jnp.asarray(workflow.resets, jnp.int32)
    after = before + counts[1]

    def reset(learned: tuple[AgentState, Any]) -> tuple[AgentState, Any]:
        fresh = workflow.init_learning(key)
        statistics = learned[0].obs_preprocessor_state
        return fresh.agent_state.replace(obs_preprocessor_state=statistics), fresh.opt_state.optimizers

    is_due = ((before < numbers) & (numbers <= after)).any()
    agent_state, optimizers = when_due(is_due, reset, (agent_state, optimizers))
    return agent_state, PyTreeDict(optimizers=optimizers, num_updates=after)
