"""Implicit quantile networks: equal to the formula of the paper, at the fractions that are passed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.networks.implicit_quantiles import ImplicitQNetwork, implicit, sample_fractions
from evorl.networks.q_networks import QNetwork
from evorl.networks.torsos import build_torso

OPTIONS = {"torso": (8,), "activation": "relu", "layer_norm": False, "orthogonal": True, "dtype": "float32"}


def built(**heads: Any) -> tuple[ImplicitQNetwork, Any, jax.Array]:
    network = implicit(QNetwork(build_torso(OPTIONS), 3, **heads), 4)
    obs = jax.random.normal(jax.random.key(1), (5, 6))
    return network, jax.jit(network.init)(jax.random.key(0), obs), obs


def test_the_quantiles_are_those_of_the_formula() -> None:
    network, params, obs = built()
    fractions = jax.random.uniform(jax.random.key(2), (5, 7))
    weights = params["params"]
    hidden = np.maximum(obs @ weights["torso"]["Dense_0"]["kernel"] + weights["torso"]["Dense_0"]["bias"], 0.0)
    expected = np.zeros((5, 3, 7))
    for n in range(5):
        for m in range(7):
            cosines = np.cos(np.pi * np.arange(64) * float(fractions[n, m]))
            embedded = np.maximum(cosines @ weights["fractions"]["kernel"] + weights["fractions"]["bias"], 0.0)
            product = np.asarray(hidden[n]) * np.asarray(embedded)
            expected[n, :, m] = product @ weights["head"]["kernel"] + weights["head"]["bias"]
    np.testing.assert_allclose(network.apply(params, obs, fractions), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [{}, {"dueling": True}, {"noisy": True}, {"dueling": True, "noisy": True}])
def test_without_fractions_there_are_the_midpoints(heads: dict[str, bool]) -> None:
    network, params, obs = built(**heads)
    midpoints = jnp.broadcast_to(jnp.array([0.125, 0.375, 0.625, 0.875]), (5, 4))
    result = network.apply(params, obs)
    assert result.shape == (5, 3, 4)
    np.testing.assert_allclose(result, network.apply(params, obs, midpoints), rtol=1e-4, atol=1e-5)
    keys = jax.random.split(jax.random.key(3), 5)
    changed = np.abs(network.apply(params, obs, None, keys) - result).max() > 0.0
    assert changed == bool(heads.get("noisy"))


def test_fractions_are_independent_samples_of_each_row() -> None:
    keys = jax.random.split(jax.random.key(0), 400)
    new_keys, first, second = sample_fractions(keys, 16)
    assert first.shape == second.shape == (400, 16)
    np.testing.assert_allclose([first.mean(), second.mean()], 0.5, atol=0.02)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.05
    assert (jax.random.key_data(new_keys) != jax.random.key_data(keys)).any()


@pytest.mark.parametrize("dueling", [False, True])
def test_all_fractions_of_a_row_have_the_same_noise(dueling: bool) -> None:
    """The noise of a single fraction, not the average of separate noise: exploration depends on it."""
    network, params, obs = built(noisy=True, dueling=dueling)
    fractions, keys = jnp.full((5, 7), 0.3), jax.random.split(jax.random.key(3), 5)
    for key in (keys, keys[0]):
        values = network.apply(params, obs, fractions, key)
        np.testing.assert_allclose(values, np.broadcast_to(values[..., :1], values.shape), rtol=1e-4, atol=1e-6)
        changes = np.abs(values - network.apply(params, obs, fractions))[:, 0, 0]
        assert len(np.unique(changes)) == 5  # noise differs between rows
