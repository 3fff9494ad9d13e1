"""Policies that are not the learner's own, improved by its critics."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from evorl.agent import AgentState
from evorl.ops import collectives
from evorl.ops.optimization import Optimizer
from evorl.ops.trees import num_rows
from evorl.sample_batch import SampleBatch
from evorl.types import Key, Params
from evorl.workflows.off_policy import OffPolicyWorkflow


def improved_policies(
    learner: OffPolicyWorkflow,
    agent_state: AgentState,
    policies: Params,
    batches: SampleBatch,
    key: Key,
    optimizer: Optimizer,
    progress: jax.Array | float = 0.0,
) -> Params:
    """Each policy after gradient steps on ``learner.policy_loss``, one for each batch; critics stay as they are.

    The devices of a mesh share the policies out, which does not show in the result.

    Args:
        learner: whose agent has critics.
        agent_state: of the learner.
        policies: parameters ``[P, ...]``.
        batches: with ``obs``, ``[U, N, ...]``, the same for every policy and on every device.
        key: of what the loss draws.
        optimizer: begun anew for each policy.
        progress: the share of the training that is over, for the optimizer's schedule.

    Returns:
        As ``policies``, on every device.
    """
    num_policies = num_rows(policies)
    num_updates, batch_size = jax.tree.leaves(batches)[0].shape[:2]
    first, count = collectives.share_of(num_policies)
    number = jnp.minimum(first + jnp.arange(count), num_policies - 1)
    own = jax.tree.map(lambda x: x[number], policies)

    def improve(policy: Params, key: Key) -> Params:
        def one_update(i: jax.Array, carry: tuple) -> tuple:
            policy, opt_state = carry
            batch = jax.tree.map(lambda x: x[i], batches)
            keys = jax.random.split(jax.random.fold_in(key, i), batch_size)
            gradients = jax.grad(learner.policy_loss)(policy, agent_state, batch, keys)
            return optimizer.apply(gradients, opt_state, policy, progress)

        return jax.lax.fori_loop(0, num_updates, one_update, (policy, optimizer.init(policy)))[0]

    improved = jax.vmap(improve)(own, jax.vmap(jax.random.fold_in, (None, 0))(key, number))
    return jax.tree.map(lambda x: x[:num_policies], collectives.gather_rows(improved))
