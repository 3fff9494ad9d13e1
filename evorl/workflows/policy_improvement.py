"""Policies that are not the learner's own, improved by its critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.ops import collectives
from evorl.ops.optimization import Optimizer
from evorl.ops.random import unrolled
from evorl.ops.trees import num_rows
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params
from evorl.workflows.nested_learner import UPDATES_AT_ONCE, in_blocks, row_of
from evorl.workflows.off_policy import OffPolicyWorkflow


def improved_policies(
    learner: OffPolicyWorkflow,
    agent_state: AgentState,
    policies: Params,
    draw: Callable[[Key, int], SampleBatch],
    num_updates: jax.Array | int,
    key: Key,
    optimizer: Optimizer,
    progress: jax.Array | float = 0.0,
) -> tuple[Params, jax.Array]:
    """Each policy after gradient steps on ``learner.policy_loss``; critics stay as they are.

    All learn from the same batches. The devices of a mesh share the policies out, which does not show in the result.

    Args:
        learner: whose agent has critics.
        agent_state: of the learner.
        policies: parameters ``[P, ...]``.
        draw: ``draw(key, n)`` gives n batches with ``obs``, ``[n, N, ...]``, the same on every device.
        num_updates: gradient steps of each policy, also a traced number.
        key: of all draws.
        optimizer: begun anew for each policy.
        progress: the share of the training that is over, for the optimizer's schedule.

    Returns:
        As ``policies``, and the mean loss of each ``[P]``, on every device.
    """
    num_policies = num_rows(policies)
    first, count = collectives.share_of(num_policies)
    share = row_of(policies, jnp.minimum(first + jnp.arange(count), num_policies - 1))
    at_once = min(num_updates, UPDATES_AT_ONCE) if isinstance(num_updates, int) else UPDATES_AT_ONCE

    def one_block(i: jax.Array, updates: jax.Array, carry: tuple) -> tuple:
        draw_key, loss_key = jax.random.split(jax.random.fold_in(key, i))
        batches = draw(draw_key, at_once)

        def one_update(j: jax.Array, carry: tuple) -> tuple:
            batch = row_of(batches, j)
            keys = jax.random.split(unrolled(jax.random.fold_in(loss_key, j)), num_rows(batch))

            def of_one(policy: Params, opt_state: Any, total: jax.Array) -> tuple[Params, Any, jax.Array]:
                loss, gradients = jax.value_and_grad(learner.policy_loss)(policy, agent_state, batch, keys)
                return *optimizer.apply(gradients, opt_state, policy, progress), total + loss

            return jax.vmap(of_one)(*carry)

        return jax.lax.fori_loop(0, updates, one_update, carry)

    start = (share, jax.vmap(optimizer.init)(share), jnp.zeros(count))
    improved, _, losses = in_blocks(num_updates, one_block, start, at_once)
    everywhere = collectives.gather_rows((improved, losses / jnp.maximum(num_updates, 1)))
    return row_of(everywhere, slice(num_policies))
