"""Per-sample losses: functions return errors, not means, so that the caller can mask, weight and average them.

Arrays have any shape. All arguments of one function have the same shape unless documented otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from evorl.ops import collectives

MAX_LOG_RATIO = 20.0  # float32 overflows from 89 on


def extend_linearly(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Return ``fn(x)``, an exponential, continued linearly above ``MAX_LOG_RATIO``: values and gradients are finite."""
    return fn(jnp.minimum(x, MAX_LOG_RATIO)) + math.exp(MAX_LOG_RATIO) * jnp.maximum(x - MAX_LOG_RATIO, 0.0)


def clipped_surrogate(log_ratio: jax.Array, advantages: jax.Array, clip_epsilon: jax.Array | float) -> jax.Array:
    """Return the negated PPO objective (Schulman et al. 2017, eq. 7): ``-min(r A, clip(r, 1 - eps, 1 + eps) A)``.

    Args:
        log_ratio: ``log r = log pi_new(a|s) - log pi_old(a|s)``.
        advantages: advantages A, with the shape of ``log_ratio``.
        clip_epsilon: half-width eps of the clipping interval.
    """
    chex.assert_equal_shape([log_ratio, advantages])
    ratio = extend_linearly(jnp.exp, log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def drift_surrogate(log_ratio: jax.Array, advantages: jax.Array, alpha: float = 2.0, beta: float = 0.6) -> jax.Array:
    """Return the negated objective of discovered policy optimization (Lu et al. 2022,
    https://arxiv.org/abs/2210.05639): ``-(r A - drift)``.

    The drift, a penalty in place of clipping, is ``relu((r - 1) A - alpha tanh((r - 1) A / alpha))`` for ``A >= 0``
    and ``relu(A log r - beta tanh(A log r / beta))`` otherwise.

    Args:
        log_ratio: ``log r = log pi_new(a|s) - log pi_old(a|s)``.
        advantages: advantages A, with the shape of ``log_ratio``.
        alpha: value of ``(r - 1) A`` up to which the penalty is small, for advantages of at least 0.
        beta: value of ``A log r`` up to which the penalty is small, for negative advantages.
    """
    chex.assert_equal_shape([log_ratio, advantages])
    increase, decrease = extend_linearly(jnp.expm1, log_ratio) * advantages, log_ratio * advantages
    drift_of_increase = jax.nn.relu(increase - alpha * jnp.tanh(increase / alpha))
    drift_of_decrease = jax.nn.relu(decrease - beta * jnp.tanh(decrease / beta))
    drift = jnp.where(advantages >= 0.0, drift_of_increase, drift_of_decrease)
    return -(extend_linearly(jnp.exp, log_ratio) * advantages - drift)


def policy_gradient(log_prob: jax.Array, advantages: jax.Array) -> jax.Array:
    """Return ``-log pi(a|s) A``, whose gradient is the policy gradient (Sutton & Barto 2018, eq. 13.6).

    No gradient flows through the advantages.
    """
    chex.assert_equal_shape([log_prob, advantages])
    return -log_prob * jax.lax.stop_gradient(advantages)


def squared_error(predictions: jax.Array, targets: jax.Array) -> jax.Array:
    """Return ``(predictions - targets)^2``, without a factor 1/2."""
    chex.assert_equal_shape([predictions, targets])
    return jnp.square(predictions - targets)


def clipped_value_error(
    values: jax.Array, old_values: jax.Array, targets: jax.Array, clip_epsilon: jax.Array | float
) -> jax.Array:
    """Return PPO's clipped value loss, ``max((V - G)^2, (V_old + clip(V - V_old, -eps, eps) - G)^2)``.

    V are the ``values``, V_old the ``old_values``, G the ``targets``, eps is ``clip_epsilon``; a factor 1/2 is omitted.
    This is the pessimistic counterpart of ``clipped_surrogate`` for values (Engstrom et al. 2020, section 3).
    """
    clipped = old_values + jnp.clip(values - old_values, -clip_epsilon, clip_epsilon)
    return jnp.maximum(squared_error(values, targets), squared_error(clipped, targets))


def td_error(q_values: jax.Array, rewards: jax.Array, discounts: jax.Array, next_q_values: jax.Array) -> jax.Array:
    """Return ``r + discount Q(s', a') - Q(s, a)``, with the shape of ``q_values`` (Sutton & Barto 2018, eq. 6.5).

    Args:
        q_values: ``Q(s, a)``, ``[..., N]``; leading axes (ensemble members) share the target.
        rewards: ``[N]``.
        discounts: ``[N]``, ``discount * (1 - termination)``: truncated steps bootstrap.
        next_q_values: ``Q(s', a')``, ``[N]``; no gradient flows through them.
    """
    chex.assert_equal_shape([rewards, discounts, next_q_values])
    chex.assert_equal_shape_suffix([q_values, rewards], rewards.ndim)
    return jax.lax.stop_gradient(rewards + discounts * next_q_values) - q_values


def least_of(values: jax.Array) -> jax.Array:
    """Return the minimum over the first axis, ``[...]`` from ``[K, ...]``; NaN where a value is NaN.

    The gradient flows to exactly one of the values. ``jnp.min`` divides it by the number of values that equal the
    minimum: if the compiled program computes the values twice, with different rounding, none is equal, and the gradient
    is NaN.
    """
    return functools.reduce(lambda least, x: jnp.where((x < least) | jnp.isnan(x), x, least), values)


def approximate_kl(log_ratio: jax.Array) -> jax.Array:
    """Return a per-sample estimate of ``KL(old || new)``: ``(r - 1) - log r`` with ``log r = log new - log old``.

    It is unbiased and non-negative: the estimator k3 of Schulman's note "Approximating KL divergence" (2020).
    """
    return extend_linearly(lambda x: jnp.expm1(x) - x, log_ratio)


def explained_variance(predictions: jax.Array, targets: jax.Array, weights: jax.Array | float = 1.0) -> jax.Array:
    """Return ``1 - Var(targets - predictions) / Var(targets)`` over all devices, 0 if constant; weights of mean 1."""
    chex.assert_equal_shape([predictions, targets])
    both, weights = jnp.stack([targets, targets - predictions]).reshape(2, -1), jnp.ravel(weights)
    centered = both - collectives.mean_over_shares((weights * both).mean(axis=1))[:, None]
    variance, unexplained = collectives.mean_over_shares((weights * jnp.square(centered)).mean(axis=1))
    varies = variance > 0.0
    return jnp.where(varies, 1.0 - unexplained / jnp.where(varies, variance, 1.0), 0.0)
