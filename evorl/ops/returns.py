"""Returns and advantages, all computed by the same backward recursion with different coefficients.

All inputs are time-major, ``[T, ...]`` with any trailing batch axes. ``values[t]`` is the estimated value of ``obs_t``.
``next_values[t]`` is that of the *true* next observation: the last of an episode, not the first of the next one.
``terminations[t]`` is true if the MDP ended with step ``t``: such steps do not bootstrap. ``dones[t]`` is true if the
episode ended for any reason: the recursion stops there, and unless the episode terminated, the step bootstraps from
``next_values[t]``, like the last step of the window. Flags may be bools or floats.

No function stops gradients. Callers that differentiate ``values`` must apply ``jax.lax.stop_gradient`` to the results.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from evorl.ops.losses import extend_linearly
from evorl.ops.platform import on_cpu

STEPS_AT_ONCE = 16  # number of steps of a recursion that are unrolled on accelerators


class VTraceResult(NamedTuple):
    """V-trace outputs ``[T, ...]``: ``value_targets`` v_t (eq. 1), and ``advantages`` for the policy gradient."""

    value_targets: jax.Array
    advantages: jax.Array


def linear_recurrence(offsets: jax.Array, factors: jax.Array | float, final: jax.Array | float = 0.0) -> jax.Array:
    """Return ``x [T, ...]``, where ``x_t = offsets_t + factors_t * x_{t+1}`` and ``x_T = final``.

    Args:
        offsets: ``[T, ...]``.
        factors: ``[T, ...]``, or a number.
        final: value after the window, ``[...]`` or a number.
    """
    factors = jnp.broadcast_to(factors, offsets.shape)
    final = jnp.broadcast_to(jnp.asarray(final, offsets.dtype), offsets.shape[1:])

    def backward(x: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        offset, factor = row
        x = offset + factor * x
        return x, x

    # A step is one small operation; on accelerators, unrolling fuses several steps into one kernel.
    return jax.lax.scan(backward, final, (offsets, factors), reverse=True, unroll=1 if on_cpu() else STEPS_AT_ONCE)[1]


def gae(
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    terminations: jax.Array,
    dones: jax.Array,
    *,
    discount: jax.Array | float,
    gae_lambda: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Compute generalized advantage estimates (Schulman et al. 2016, eq. 16), with bootstrapping at time limits.

    ``delta_t = r_t + discount (1 - termination_t) V(s_{t+1}) - V(s_t)`` and
    ``A_t = delta_t + discount lambda (1 - done_t) A_{t+1}``.

    Returns:
        ``(advantages, value_targets)``, both ``[T, ...]``; the targets are ``A_t + V(s_t)``, the TD(lambda) returns.
    """
    chex.assert_equal_shape([rewards, values, next_values, terminations, dones])
    continues = _not(dones, rewards.dtype)
    deltas = rewards + discount * _not(terminations, rewards.dtype) * next_values - values
    advantages = linear_recurrence(deltas, discount * gae_lambda * continues)
    return advantages, advantages + values


def lambda_return(
    rewards: jax.Array,
    next_values: jax.Array,
    terminations: jax.Array,
    dones: jax.Array,
    discount: jax.Array | float,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Compute TD(lambda) returns (Sutton & Barto 2018, eq. 12.18), ``[T, ...]``.

    ``G_t = r_t + discount (1 - termination_t) [(1 - lambda c_t) V(s_{t+1}) + lambda c_t G_{t+1}]`` where
    ``c_t = 1 - done_t``. ``lambda_ = 0`` gives one-step TD targets; 1 bootstraps only at truncations and at T.
    """
    chex.assert_equal_shape([rewards, next_values, terminations, dones])
    weight = lambda_ * _not(dones, rewards.dtype)
    discounts = discount * _not(terminations, rewards.dtype)
    return linear_recurrence(rewards + discounts * (1.0 - weight) * next_values, discounts * weight, next_values[-1])


def discounted_return(
    rewards: jax.Array, dones: jax.Array, discount: jax.Array | float, final_values: jax.Array | float = 0.0
) -> jax.Array:
    """Compute discounted sums of rewards to the end of the episode, ``[T, ...]``, without bootstrapping at its end.

    ``G_t = r_t + discount (1 - done_t) G_{t+1}`` with ``G_T = final_values`` (``[...]`` or a number).
    """
    chex.assert_equal_shape([rewards, dones])
    return linear_recurrence(rewards, discount * _not(dones, rewards.dtype), final_values)


def n_step_return(
    rewards: jax.Array,
    next_values: jax.Array,
    terminations: jax.Array,
    dones: jax.Array,
    discount: jax.Array | float,
    num_steps: int,
) -> jax.Array:
    """Compute returns of ``num_steps`` rewards and a bootstrap value (Sutton & Barto 2018, eq. 7.1), ``[T, ...]``.

    ``G_t = r_t + ... + discount^n V(s_{t+n})``; n is ``num_steps``, or smaller if the episode or window ends before.

    Raises:
        ValueError: ``num_steps`` is less than 1.
    """
    if num_steps < 1:
        raise ValueError(f"an n-step return needs num_steps >= 1, got {num_steps}.")
    chex.assert_equal_shape([rewards, next_values, terminations, dones])
    length = rewards.shape[0]
    is_last = (jnp.arange(length) == length - 1).reshape((length,) + (1,) * (rewards.ndim - 1))
    cut = jnp.maximum(dones.astype(rewards.dtype), is_last.astype(rewards.dtype))
    bootstraps = discount * _not(terminations, rewards.dtype) * next_values
    # The recursion runs over the steps of each window, for all windows at once.
    steps = jnp.minimum(jnp.arange(num_steps)[:, None] + jnp.arange(length), length - 1)  # [n, T]
    return linear_recurrence(
        (rewards + cut * bootstraps)[steps], (discount * (1.0 - cut))[steps], final=next_values[steps[-1]]
    )[0]


def vtrace(
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    terminations: jax.Array,
    dones: jax.Array,
    log_ratios: jax.Array,
    *,
    discount: jax.Array | float,
    lambda_: jax.Array | float = 1.0,
    clip_rho: jax.Array | float = 1.0,
    clip_c: jax.Array | float = 1.0,
    clip_pg_rho: jax.Array | float = 1.0,
) -> VTraceResult:
    """Compute V-trace targets and policy-gradient advantages (Espeholt et al. 2018, eq. 1 and section 4.2).

    With ``rho_t = min(clip_rho, ratio_t)`` and ``c_t = lambda min(clip_c, ratio_t)``::

        delta_t = rho_t (r_t + discount (1 - termination_t) V(s_{t+1}) - V(s_t))
        v_t - V(s_t) = delta_t + discount (1 - done_t) c_t (v_{t+1} - V(s_{t+1}))
        A_t = min(clip_pg_rho, ratio_t) (r_t + discount (1 - termination_t) q_{t+1} - V(s_t))

    where ``q_{t+1} = V(s_{t+1}) + lambda (v_{t+1} - V(s_{t+1}))`` within an episode, which is the paper's ``v_{t+1}``
    for ``lambda = 1``, and ``V(s_{t+1})`` at a truncation or the end of the window. On-policy, ``gae`` gives the same.

    Args:
        log_ratios: ``log pi(a_t|s_t) - log mu(a_t|s_t)``, ``[T, ...]``, of target policy pi and behavior policy mu.
    """
    chex.assert_equal_shape([rewards, values, next_values, terminations, dones, log_ratios])
    continues = _not(dones, rewards.dtype)
    ratios = extend_linearly(jnp.exp, log_ratios)
    errors = rewards + discount * _not(terminations, rewards.dtype) * next_values - values
    corrections = linear_recurrence(
        jnp.minimum(clip_rho, ratios) * errors, discount * lambda_ * continues * jnp.minimum(clip_c, ratios)
    )
    next_corrections = jnp.concatenate([corrections[1:], jnp.zeros_like(corrections[:1])])
    advantages = jnp.minimum(clip_pg_rho, ratios) * (errors + discount * lambda_ * continues * next_corrections)
    return VTraceResult(value_targets=corrections + values, advantages=advantages)


def _not(flags: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    return 1.0 - flags.astype(dtype)
