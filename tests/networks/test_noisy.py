"""Noisy layers: the noise of the paper, row by row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from evorl.networks.layers import NoisyDense

LAYER = NoisyDense(3)
X = jnp.linspace(-1.0, 2.0, 8).reshape(2, 4)
PARAMS = LAYER.init(jax.random.key(0), X)


def test_without_a_key_it_is_a_dense_layer() -> None:
    weights = PARAMS["params"]
    np.testing.assert_allclose(LAYER.apply(PARAMS, X), X @ weights["kernel"] + weights["bias"], rtol=1e-5)
    np.testing.assert_allclose(weights["kernel_scale"], 0.5 / 2.0)
    assert float(jnp.abs(weights["kernel"]).max()) <= 0.5


def test_each_row_has_weights_of_its_own() -> None:
    same = jnp.ones((5, 4))
    keys = jax.random.split(jax.random.key(1), 5)
    rows = LAYER.apply(PARAMS, same, keys)
    assert len(np.unique(np.asarray(rows)[:, 0])) == 5
    np.testing.assert_allclose(LAYER.apply(PARAMS, same[3:4], keys[3:4])[0], rows[3], rtol=1e-5)


def test_noise_is_that_of_explicit_weight_matrices() -> None:
    key = jax.random.split(jax.random.key(2), 2)
    weights = PARAMS["params"]
    for row in range(2):
        noise = np.asarray(jax.random.normal(key[row], (7,)))
        noise = np.sign(noise) * np.sqrt(np.abs(noise))
        kernel = weights["kernel"] + weights["kernel_scale"] * np.outer(noise[:4], noise[4:])
        bias = weights["bias"] + weights["bias_scale"] * noise[4:]
        np.testing.assert_allclose(LAYER.apply(PARAMS, X, key)[row], X[row] @ kernel + bias, rtol=1e-4)


def test_the_scale_of_the_noise_is_learned() -> None:
    gradient = jax.grad(lambda p: jnp.square(LAYER.apply(p, X, jax.random.key(3))).sum())(PARAMS)["params"]
    assert all(leaf.any() for leaf in gradient.values())


def test_shared_axes_have_the_same_noise() -> None:
    layer, x, keys = NoisyDense(3, num_shared_axes=1), jnp.ones((5, 2, 4)), jax.random.split(jax.random.key(1), 5)
    shared = np.asarray(layer.apply(PARAMS, x, keys))
    np.testing.assert_array_equal(shared[:, 0], shared[:, 1])
    assert len(np.unique(shared[:, 0, 0])) == 5
