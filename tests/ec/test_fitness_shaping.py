"""Ranks, weights and standardised fitness, with equals and with what is not a number."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from evorl.ec import fitness_shaping as shaping

WITH_TIES = jnp.array([3.0, jnp.nan, 1.0, 3.0, 1.0])


def test_ranks() -> None:
    np.testing.assert_array_equal(shaping.compute_ranks(jnp.array([0.3, -2.0, 5.0, 1.5])), [1, 0, 3, 2])
    # What is not a number counts as the worst, and of equals the earlier one has the lower rank.
    np.testing.assert_array_equal(shaping.compute_ranks(WITH_TIES), [3, 0, 1, 4, 2])


def test_centered_ranks() -> None:
    centered = shaping.compute_centered_ranks(jnp.array([0.3, -2.0, 5.0, 1.5, 1.0]))
    np.testing.assert_allclose(centered, [-0.25, -0.5, 0.5, 0.25, 0.0], atol=1e-7)
    # Equals share the mean of their ranks: what is not a number is one of the three worst.
    centered = shaping.compute_centered_ranks(WITH_TIES)
    np.testing.assert_allclose(centered, [0.375, -0.25, -0.25, 0.375, -0.25], atol=1e-7)
    np.testing.assert_array_equal(shaping.compute_centered_ranks(jnp.full(7, 500.0)), 0.0)
    np.testing.assert_array_equal(shaping.compute_centered_ranks(jnp.ones(1)), [-0.5])


def test_a_generation_without_a_number_tells_nothing() -> None:
    unknown = jnp.full(4, jnp.nan)
    np.testing.assert_array_equal(shaping.nan_to_worst(unknown), 0.0)
    for name in shaping.FITNESS_SHAPING:
        np.testing.assert_array_equal(shaping.fitness_shaping(name)(unknown), 0.0)


def test_standardized_and_raw_fitness() -> None:
    standardized = np.asarray(shaping.standardized_fitness(WITH_TIES))
    known = np.array([3.0, 1.0, 1.0, 3.0, 1.0])
    np.testing.assert_allclose(standardized, (known - known.mean()) / known.std(), rtol=1e-5)
    for equal in (2.0, -1234.567):
        np.testing.assert_array_equal(jax.jit(shaping.standardized_fitness)(jnp.full(100, equal)), 0.0)
    np.testing.assert_array_equal(shaping.raw_fitness(WITH_TIES), known)


def test_weights_of_the_best() -> None:
    best = shaping.log_rank_weights(3)
    raw = np.log(3.5) - np.log([1.0, 2.0, 3.0])
    np.testing.assert_allclose(best, raw / raw.sum(), rtol=1e-5)
    weights = shaping.weights_by_rank(WITH_TIES, best)
    np.testing.assert_allclose(weights, [best[1], 0.0, 0.0, best[0], best[2]], rtol=1e-6)


def test_names() -> None:
    assert shaping.fitness_shaping("raw") is shaping.raw_fitness
    with pytest.raises(ValueError, match=r"'centred_ranks'.*Did you mean 'centered_ranks'\?"):
        shaping.fitness_shaping("centred_ranks")
