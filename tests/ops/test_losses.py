from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops import losses


def test_clipped_surrogate_is_pessimistic() -> None:
    log_ratio = jnp.log(jnp.array([0.5, 0.5, 1.0, 2.0, 2.0]))
    advantages = jnp.array([1.0, -1.0, 3.0, 1.0, -1.0])
    result = losses.clipped_surrogate(log_ratio, advantages, 0.2)
    np.testing.assert_allclose(result, [-0.5, 0.8, -3.0, -1.2, 2.0], rtol=1e-6)


def test_clipped_surrogate_gradient_vanishes_beyond_the_clip() -> None:
    slopes = jax.vmap(jax.grad(lambda x, a: losses.clipped_surrogate(x, a, 0.2)))
    gradient = slopes(jnp.log(jnp.array([2.0, 2.0, 1.1])), jnp.array([1.0, -1.0, 1.0]))
    np.testing.assert_allclose(gradient, [0.0, 2.0, -1.1], rtol=1e-6)


def test_clipped_value_error_takes_the_larger_error() -> None:
    old = jnp.zeros(3)
    values, targets = jnp.array([0.1, 1.0, 1.0]), jnp.array([1.0, 1.0, -1.0])
    result = losses.clipped_value_error(values, old, targets, 0.2)
    np.testing.assert_allclose(result, [0.81, 0.64, 4.0], rtol=1e-6)


def test_the_policy_gradient_stops_at_the_advantages() -> None:
    """With respect to log-probabilities the gradient is minus the advantage; to advantages it is 0."""
    log_prob, advantages = jnp.array([-1.0, -2.0]), jnp.array([0.5, -3.0])
    np.testing.assert_allclose(losses.policy_gradient(log_prob, advantages), [0.5, -6.0])
    gradients = jax.grad(lambda *x: losses.policy_gradient(*x).sum(), argnums=(0, 1))(log_prob, advantages)
    np.testing.assert_allclose(gradients, [-advantages, [0.0, 0.0]])


def test_squared_error_is_per_sample() -> None:
    np.testing.assert_allclose(losses.squared_error(jnp.array([1.0, 2.0]), jnp.array([3.0, 2.0])), [4.0, 0.0])
    with pytest.raises(AssertionError, match="shape"):
        losses.squared_error(jnp.zeros((4, 1)), jnp.zeros(4))  # broadcasting would give [4, 4]


def test_td_error_shares_targets_among_an_ensemble_and_stops_their_gradient() -> None:
    rewards, discounts, next_q = jnp.array([1.0, 1.0]), jnp.array([0.9, 0.0]), jnp.array([10.0, 10.0])
    q_values = jnp.array([[1.0, 1.0], [2.0, 3.0], [0.0, 0.0]])
    error = losses.td_error(q_values, rewards, discounts, next_q)
    np.testing.assert_allclose(error, [[9.0, 0.0], [8.0, -2.0], [10.0, 1.0]])
    gradient = jax.grad(lambda q: losses.td_error(q_values, rewards, discounts, q).sum())(next_q)
    np.testing.assert_array_equal(gradient, 0.0)
    with pytest.raises(AssertionError, match="shape"):
        losses.td_error(q_values.T, rewards, discounts, next_q)


def test_approximate_kl_is_k3() -> None:
    ratio = np.array([0.5, 1.0, 2.0])
    result = losses.approximate_kl(jnp.log(jnp.asarray(ratio)))
    np.testing.assert_allclose(result, (ratio - 1) - np.log(ratio), rtol=1e-5)
    assert result[1] == 0.0
    # The mean over samples of the old policy is the divergence: here for two categoricals.
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    estimate = (old * np.asarray(losses.approximate_kl(jnp.log(new / old)))).sum()
    np.testing.assert_allclose(estimate, (old * np.log(old / new)).sum(), rtol=1e-5)


def test_explained_variance() -> None:
    targets = jnp.array([1.0, 2.0, 3.0])
    assert losses.explained_variance(targets, targets) == 1.0
    np.testing.assert_allclose(losses.explained_variance(targets + 5.0, targets), 1.0)
    np.testing.assert_allclose(losses.explained_variance(jnp.full(3, 2.0), targets), 0.0, atol=1e-6)
    assert losses.explained_variance(targets, jnp.ones(3)) == 0.0
    weighted = losses.explained_variance(jnp.array([1.5, 2.0, 9.0]), targets, jnp.array([1.5, 1.5, 0.0]))
    np.testing.assert_allclose(weighted, losses.explained_variance(jnp.array([1.5, 2.0]), targets[:2]), rtol=1e-5)


def _drift_by_hand(ratio: float, advantage: float) -> float:
    if advantage >= 0.0:
        step = (ratio - 1.0) * advantage
        drift = max(0.0, step - 2.0 * math.tanh(step / 2.0))
    else:
        step = math.log(ratio) * advantage
        drift = max(0.0, step - 0.6 * math.tanh(step / 0.6))
    return drift - ratio * advantage


def test_drift_surrogate_of_discovered_policy_optimization() -> None:
    ratio = np.array([0.2, 0.5, 1.0, 2.0, 5.0])
    for advantage in (-3.0, -1.0, 0.0, 1.0, 3.0):
        result = losses.drift_surrogate(jnp.log(jnp.asarray(ratio)), jnp.full(5, advantage))
        np.testing.assert_allclose(result, [_drift_by_hand(r, advantage) for r in ratio], rtol=1e-4, atol=1e-6)


def test_the_drift_has_no_gradient_at_the_old_policy() -> None:
    """At ratio 1 the gradient is that of the policy gradient; far from it, the objective no longer increases fast."""
    slope = jax.vmap(jax.grad(losses.drift_surrogate), in_axes=(0, 0))
    advantages = jnp.array([2.0, -2.0, 2.0, -2.0])
    slopes = slope(jnp.array([0.0, 0.0, 3.0, -3.0]), advantages)
    np.testing.assert_allclose(slopes[:2], -advantages[:2], rtol=1e-5)
    assert np.abs(slopes[2]) < 0.01 * np.exp(3.0) * 2.0
    assert slopes[3] < 0.2, "a decrease of the probability of a bad action below the drift is not rewarded"


def test_a_gradient_of_the_least_value_belongs_to_one_value() -> None:
    values = jnp.array([[1.0, 2.0, 3.0], [0.5, 2.0, 4.0], [0.7, 2.5, jnp.nan]])
    np.testing.assert_array_equal(losses.least_of(values), [0.5, 2.0, jnp.nan])
    gradient = jax.grad(lambda x: losses.least_of(x).sum())(values[:, :2])
    np.testing.assert_array_equal(gradient, [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    # In a tie, one value counts.
    assert gradient.sum() == 2.0
