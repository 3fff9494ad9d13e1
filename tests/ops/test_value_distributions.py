"""Distributions of returns equal small manual examples and slow references."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.ops.value_distributions import (
    categorical_losses,
    categorical_projection,
    drop_largest_atoms,
    hl_gauss,
    quantile_huber,
    quantile_midpoints,
)
from tests.support.errors import raises_naming

SUPPORT = jnp.linspace(-1.0, 1.0, 5)


def test_mass_is_shared_by_the_neighbors() -> None:
    atoms = jnp.array([[-0.75, 0.5, 0.1], [-9.0, 9.0, 0.0]])
    probs = jnp.array([[0.4, 0.4, 0.2], [0.25, 0.5, 0.25]])
    projected = categorical_projection(atoms, probs, SUPPORT)
    expected = [[0.2, 0.2, 0.2 * 0.8, 0.2 * 0.2 + 0.4, 0.0], [0.25, 0.0, 0.25, 0.0, 0.5]]
    np.testing.assert_allclose(projected, expected, atol=1e-6)


def test_hl_gauss_is_a_normal_distribution_on_the_grid() -> None:
    """Bins contain the mass of a normal distribution with deviation 0.75 steps, scaled to the grid's whole mass."""
    targets = np.array([0.1, -0.95, 3.0])
    edges, deviation = np.linspace(-1.25, 1.25, 6), 0.75 * 0.5
    expected = []
    for target in np.clip(targets, -1.0, 1.0):
        below = np.array([0.5 * (1.0 + math.erf((edge - target) / (math.sqrt(2.0) * deviation))) for edge in edges])
        expected.append((below[1:] - below[:-1]) / (below[-1] - below[0]))
    probs = hl_gauss(jnp.asarray(targets, jnp.float32), SUPPORT)
    np.testing.assert_allclose(probs, expected, atol=1e-6)
    np.testing.assert_allclose(probs.sum(axis=-1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("target", [0.0, 40.2, 99.7, 150.0])
def test_hl_gauss_preserves_the_mean_away_from_the_ends(target: float) -> None:
    support = jnp.linspace(0.0, 150.0, 151)
    mean = float(hl_gauss(jnp.float32(target), support) @ support)
    tolerance = 0.05 if 3.0 < target < 147.0 else 0.75
    assert abs(mean - target) < tolerance


def test_projection_is_that_of_the_papers_algorithm() -> None:
    """Projections equal Algorithm 1 of Bellemare et al., with its floors and ceilings."""
    key = jax.random.split(jax.random.key(0), 3)
    probs = jax.nn.softmax(jax.random.normal(key[0], (20, 5)))
    rewards, discounts = jax.random.normal(key[1], (20,)), 0.9 * jax.random.bernoulli(key[2], 0.7, (20,))
    atoms = rewards[:, None] + discounts[:, None] * SUPPORT
    expected = np.zeros((20, 5))
    for row in range(20):
        for atom, prob in zip(np.asarray(atoms[row]), np.asarray(probs[row]), strict=True):
            place = (np.clip(atom, -1.0, 1.0) + 1.0) / 0.5
            low, high = int(np.floor(place)), int(np.ceil(place))
            expected[row, low] += prob * (high - place if high > low else 1.0)
            expected[row, high] += prob * (place - low)
    projected = categorical_projection(atoms, probs, SUPPORT)
    np.testing.assert_allclose(projected, expected, atol=1e-5)
    np.testing.assert_allclose(projected.sum(axis=-1), 1.0, atol=1e-6)
    inside = (jnp.abs(atoms) <= 1.0).all(axis=-1)
    np.testing.assert_allclose((projected @ SUPPORT)[inside], (probs * atoms).sum(axis=-1)[inside], atol=1e-5)


@pytest.mark.parametrize(("low", "high", "num_atoms"), [(-10.0, 10.0, 51), (-300.0, 300.0, 601), (0.0, 100.0, 51)])
def test_projection_is_exact_at_grid_points_and_ends(low: float, high: float, num_atoms: int) -> None:
    """Projections equal hat functions in float64, on and between grid points, at the ends and beyond."""
    support = np.linspace(low, high, num_atoms, dtype=np.float32)
    on_grid = support[:: max(1, num_atoms // 40)]
    between = np.random.default_rng(0).uniform(low - 1.0, high + 1.0, 40).astype(np.float32)
    ends = np.array([low, high, low - 1e6, high + 1e6], np.float32)
    near = (np.nextafter(on_grid, np.float32(np.inf)), np.nextafter(on_grid, np.float32(-np.inf)))
    points = np.concatenate([on_grid, *near, between, ends])
    hats = np.eye(num_atoms)
    clipped = np.clip(points.astype(np.float64), support[0], support[-1])
    expected = np.stack([np.interp(clipped, support.astype(np.float64), hat) for hat in hats], axis=1)  # [points, K]
    projected = jax.jit(categorical_projection)(points[:, None], np.ones((len(points), 1), np.float32), support)
    np.testing.assert_allclose(projected, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(projected.sum(axis=1), 1.0, atol=1e-6)
    joined = categorical_projection(points, np.full(len(points), 1.0 / len(points), np.float32), support)
    np.testing.assert_allclose(joined, expected.mean(axis=0), rtol=0, atol=1e-6)


def test_losses_of_categories_by_hand() -> None:
    """Losses equal manual results for a termination with reward 0.25 and for an unshifted target."""
    logits = jax.random.normal(jax.random.key(0), (2, 2, 5))
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    next_probs = jnp.array([[0.2] * 5, [0.1, 0.2, 0.3, 0.4, 0.0]])
    targets = np.array([[0.0, 0.0, 0.5, 0.5, 0.0], [0.1, 0.2, 0.3, 0.4, 0.0]])
    rewards, discounts = jnp.array([0.25, 0.0]), jnp.array([0.0, 1.0])
    losses, divergences = categorical_losses(logits, rewards, discounts, next_probs, SUPPORT)
    np.testing.assert_allclose(losses, -(targets * log_probs).sum(axis=-1), rtol=1e-5)
    entropies = -(targets * np.log(np.maximum(targets, 1e-12))).sum(axis=-1)
    np.testing.assert_allclose(divergences, losses - entropies, rtol=1e-4)
    _, none = categorical_losses(jnp.log(next_probs), jnp.zeros(2), jnp.ones(2), next_probs + 0.0, SUPPORT)
    np.testing.assert_allclose(none[0], 0.0, atol=1e-6)
    gradient = jax.grad(lambda probs: categorical_losses(logits, rewards, discounts, probs, SUPPORT)[0].sum())
    np.testing.assert_array_equal(gradient(next_probs), 0.0)


def test_quantile_huber_by_hand() -> None:
    """The loss of two quantiles (fractions 1/4 and 3/4) and two targets equals the manual result."""
    quantiles, targets = jnp.array([0.0, 1.0]), jnp.array([0.5, 3.0])
    # errors of quantile 0: 0.5, 3.0; of quantile 1: -0.5, 2.0
    expected = 0.25 * (0.125 + 2.5) / 2 + (0.25 * 0.125 + 0.75 * 1.5) / 2
    np.testing.assert_allclose(quantile_huber(quantiles, targets), expected, rtol=1e-6)
    # with delta = 2: huber(3) = 4, others quadratic except for their division
    expected = (0.25 * (0.125 + 4.0) / 2 + (0.25 * 0.125 + 0.75 * 2.0) / 2) / 2
    np.testing.assert_allclose(quantile_huber(quantiles, targets, 2.0), expected, rtol=1e-6)
    # a third target: the loss is a sum over quantiles and a mean over targets
    expected = 0.25 * (0.125 + 2.5 + 0.5) / 3 + (0.25 * 0.125 + 0.75 * 1.5 + 0.0) / 3
    np.testing.assert_allclose(quantile_huber(quantiles, jnp.append(targets, 1.0)), expected, rtol=1e-6)


def test_its_minimum_are_the_quantiles() -> None:
    """Gradient descent with a small delta finds the quantiles of the samples."""
    samples = jax.random.normal(jax.random.key(0), (1001,))

    @jax.jit
    def descend(quantiles: jax.Array) -> jax.Array:
        gradient = jax.grad(lambda q: quantile_huber(q, samples, 0.01))
        return jax.lax.fori_loop(0, 3000, lambda _, q: q - 0.01 * gradient(q), quantiles)

    expected = np.quantile(np.asarray(samples), np.asarray(quantile_midpoints(5)))
    np.testing.assert_allclose(descend(jnp.zeros(5)), expected, atol=0.02)


def test_targets_get_no_gradient() -> None:
    gradient = jax.grad(lambda targets: quantile_huber(jnp.zeros(3), targets))(jnp.ones(4))
    np.testing.assert_array_equal(gradient, 0.0)


def test_the_greatest_atoms_are_dropped_from_the_pool() -> None:
    atoms = jnp.array([[[1.0, 5.0, 3.0]], [[4.0, 0.0, 2.0]]])  # [K, B, N]
    np.testing.assert_array_equal(drop_largest_atoms(atoms, 2), [[0.0, 1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(drop_largest_atoms(atoms, 0), [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    with raises_naming(ValueError, "6 of 6 atoms"):
        drop_largest_atoms(atoms, 6)
