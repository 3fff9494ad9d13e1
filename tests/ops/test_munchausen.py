"""Munchausen targets against the formulas of the paper."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.munchausen import LOWEST, Munchausen

Q = jnp.array([[1.0, 1.01, 0.5], [0.0, 2.0, -np.inf], [3.0, 3.0, 3.0]])


def log_policy(q: np.ndarray, temperature: float) -> np.ndarray:
    scaled = q / temperature - (q / temperature).max(axis=-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("temperature", [0.03, 1.0])
def test_the_bonus_is_the_clipped_scaled_log_policy(temperature: float) -> None:
    """Temperature times log-policy, not the log-policy itself, is clipped at -1; excluded actions get -1 as well."""
    policy = Munchausen(weight=0.5, temperature=temperature)
    for actions in ([0, 0, 0], [1, 1, 1], [2, 2, 2]):
        expected = 0.5 * np.clip(temperature * log_policy(np.asarray(Q), temperature)[np.arange(3), actions], -1.0, 0.0)
        np.testing.assert_allclose(policy.bonus(Q, jnp.array(actions)), expected, rtol=1e-4, atol=1e-6)
    assert float(policy.bonus(Q, jnp.array([0, 2, 0]))[1]) == 0.5 * LOWEST


def test_soft_values_are_the_log_sum_of_exponentials() -> None:
    policy = Munchausen(temperature=0.3)
    finite = jnp.where(jnp.isfinite(Q), Q, 100.0)  # an excluded action contributes nothing
    expected = 0.3 * jax.nn.logsumexp(Q / 0.3, axis=-1)
    np.testing.assert_allclose(policy.soft_values(finite, Q), expected, rtol=1e-5)
    assert (policy.soft_values(finite, Q)[jnp.array([0, 2])] > Q.max(axis=-1)[jnp.array([0, 2])]).all(), "plus entropy"


def test_soft_values_of_atoms_have_the_soft_values_as_mean() -> None:
    """Every atom is averaged over actions by the policy, and the entropy is added once to each of them."""
    policy = Munchausen(temperature=0.3)
    atoms = jax.random.normal(jax.random.key(0), (3, 3, 8)) + 2.0
    q_values = atoms.mean(axis=-1)
    soft = policy.soft_values(atoms, q_values)
    assert soft.shape == (3, 8)
    np.testing.assert_allclose(soft.mean(axis=-1), 0.3 * jax.nn.logsumexp(q_values / 0.3, axis=-1), rtol=1e-5)
