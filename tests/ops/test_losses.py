from __future__ import annotations

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
