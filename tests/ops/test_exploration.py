from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.exploration import add_gaussian_noise, epsilon_greedy_probabilities, ou_noise_step


def test_epsilon_greedy_splits_ties_and_sums_to_one() -> None:
    q_values = jnp.array([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0]])
    result = epsilon_greedy_probabilities(q_values, 0.3)
    np.testing.assert_allclose(result, [[0.1, 0.8, 0.1], [0.45, 0.45, 0.1]], rtol=1e-6)
    per_row = epsilon_greedy_probabilities(q_values, jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(per_row, [[0, 1, 0], [1 / 3] * 3], rtol=1e-6)


def test_gaussian_noise_is_bounded_and_clipped() -> None:
    actions = jnp.zeros((1000, 2))
    noise = add_gaussian_noise(jax.random.key(0), actions, 0.2)
    np.testing.assert_allclose(noise.std(), 0.2, rtol=0.1)
    smoothing = add_gaussian_noise(jax.random.key(0), actions + 0.9, 1.0, noise_bound=0.5)
    assert smoothing.max() == 1.0
    np.testing.assert_allclose(smoothing.min(), 0.4, rtol=1e-5)
    np.testing.assert_array_equal(add_gaussian_noise(jax.random.key(0), actions, 0.0), actions)


def test_keys_per_row_make_rows_independent_of_the_batch() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    whole = add_gaussian_noise(keys, jnp.zeros((6, 2)), 0.1)
    np.testing.assert_array_equal(add_gaussian_noise(keys[2:4], jnp.zeros((2, 2)), 0.1), whole[2:4])


def test_ou_noise_has_its_stationary_deviation() -> None:
    def step(noise: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = ou_noise_step(key, noise, theta=0.5, sigma=0.3)
        return noise, noise

    _, path = jax.lax.scan(step, jnp.zeros(200), jax.random.split(jax.random.key(0), 200))
    # x' = (1 - theta) x + sigma N has variance sigma^2 / (1 - (1 - theta)^2).
    np.testing.assert_allclose(path[20:].std(), 0.3 / np.sqrt(1 - 0.25), rtol=0.05)
    np.testing.assert_allclose(path[20:].mean(), 0.0, atol=0.05)
