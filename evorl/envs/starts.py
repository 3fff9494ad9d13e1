"""Policies for computing the start states of the next episodes of a vector environment; they affect only the speed.

``when_needed`` computes starts in a loop that runs only in steps in which an environment needs a start; it is the
default on the CPU. On an accelerator, the condition of such a loop makes the host wait for the device in every step,
which takes as long as about ten small kernels. ``every_step`` avoids this wait: it computes starts at every step. By
default, accelerators use it if resets are cheap; for expensive resets, the wait is negligible.

States have the same structure under both policies, and each policy can continue from the states of the other policy: a
stored start is used only if it is marked as not yet used.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from evorl.ops.platform import on_cpu
from evorl.ops.traced_programs import work_of

StartPolicy: TypeAlias = Literal["every_step", "when_needed"]

# A reset is cheap if its numbers of operations and of result elements are each at most this fraction of a step's, or
# at most these limits. Resetting 4,096 environments at the limits takes about as long as the host waits for the device.
CHEAP_PART, CHEAP_OPERATIONS, CHEAP_NUMBERS = 0.25, 2000, 2**15


def start_policy(env: Any) -> StartPolicy:
    """Return ``env.starts``, or if it is ``None``, the policy that is probably faster on the current platform."""
    if env.starts is not None:
        return env.starts
    return "every_step" if not on_cpu() and _resets_are_cheap(env) else "when_needed"


@functools.cache
def _resets_are_cheap(env: Any) -> bool:
    """Return True if resets are cheap, by the numbers of operations and result elements of a reset and a step."""
    rows = env.num_agents
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    reset = jax.make_jaxpr(env.starts_of, return_shape=True)
    program, start = reset(keys, jax.ShapeDtypeStruct((rows,), jnp.int32))
    actions = jax.eval_shape(lambda: env.action_space.zeros((rows,)))
    of_reset, of_step = work_of(program), work_of(jax.make_jaxpr(env.step_copies)(start, actions))
    return all(
        reset <= max(free, CHEAP_PART * step)
        for reset, step, free in zip(of_reset, of_step, (CHEAP_OPERATIONS, CHEAP_NUMBERS), strict=True)
    )
