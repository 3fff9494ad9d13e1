"""Improvement of a batch of policies by gradient steps on the policy loss of a learner with critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.ops import collectives
from evorl.ops.optimization import Optimizer
from evorl.ops.random import unrolled
from evorl.ops.trees import num_rows, row_of
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params
from evorl.workflows.nested_learner import UPDATES_AT_ONCE, in_blocks
from evorl.workflows.off_policy import OffPolicyWorkflow


def improved_policies(
    learner: OffPolicyWorkflow,
    agent_state: AgentState,
    policies: Params,
    draw: Callable[[Key, int], SampleBatch],
    num_updates: jax.Array | int,
    *,
    key: Key,
    optimizer: Optimizer,
    progress: jax.Array | float = 0.0,
) -> tuple[Params, jax.Array]:
    """Improve each policy by gradient steps on ``learner.policy_loss``; the critics do not change.

    All policies learn from the same batches. On a mesh the policies are sharded over devices, with the same result.

    Args:
        learner: off-policy workflow whose agent has critics.
        agent_state: state of the learner's agent.
        policies: parameters ``[P, ...]``.
        draw: ``draw(key, n)`` returns n batches of N transitions, ``[n, N, ...]``, identical on all devices.
        num_updates: number of gradient steps per policy, an int or a traced int32.
        key: random key.
        optimizer: optimizer of the policies; its state is initialized for each policy.
        progress: completed fraction of training, for the optimizer's schedule.

    Returns:
        The improved policies ``[P, ...]`` and their losses ``[P]``, averaged over the steps; equal on all devices.
    """
    num_policies = num_rows(policies)
    first, count = collectives.share_of(num_policies)
    shard = row_of(policies, jnp.minimum(first + jnp.arange(count), num_policies - 1))
    at_once = min(num_updates, UPDATES_AT_ONCE) if isinstance(num_updates, int) else UPDATES_AT_ONCE

    def one_block(i: jax.Array, updates: jax.Array, carry: tuple) -> tuple:
        draw_key, loss_key = jax.random.split(jax.random.fold_in(key, i))
        batches = draw(draw_key, at_once)

        def one_update(j: jax.Array, carry: tuple) -> tuple:
            batch = row_of(batches, j)
            keys = jax.random.split(unrolled(jax.random.fold_in(loss_key, j)), num_rows(batch))

            def one_policy(policy: Params, opt_state: Any, total: jax.Array) -> tuple[Params, Any, jax.Array]:
                with collectives.whole_batch():  # else losses with statistics of the batch would mix policies
                    loss, gradients = jax.value_and_grad(learner.policy_loss)(policy, agent_state, batch, keys)
                return *optimizer.apply(gradients, opt_state, policy, progress), total + loss

            return jax.vmap(one_policy)(*carry)

        return jax.lax.fori_loop(0, updates, one_update, carry)

    start = (shard, jax.vmap(optimizer.init)(shard), jnp.zeros(count))
    improved, _, losses = in_blocks(num_updates, one_block, start, at_once)
    gathered = collectives.gather_rows((improved, losses / jnp.maximum(num_updates, 1)))
    return row_of(gathered, slice(num_policies))
