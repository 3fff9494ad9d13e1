"""Ranks, weights and standardized fitness, with ties and NaN."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from evorl.ec import fitness_shaping as shaping

WITH_TIES = jnp.array([3.0, jnp.nan, 1.0, 3.0, 1.0])


def test_ranks() -> None:
    np.testing.assert_array_equal(shaping.compute_ranks(jnp.array([0.3, -2.0, 5.0, 1.5])), [1, 0, 3, 2])
    # Failures rank below the worst; of equal values the earlier has the lower rank.
    np.testing.assert_array_equal(shaping.compute_ranks(WITH_TIES), [3, 0, 1, 4, 2])


def test_centered_ranks() -> None:
    centered = shaping.compute_centered_ranks(jnp.array([0.3, -2.0, 5.0, 1.5, 1.0]))
    np.testing.assert_allclose(centered, [-0.25, -0.5, 0.5, 0.25, 0.0], atol=1e-7)
    # Equal values share the mean of their ranks; failures rank below the worst.
    centered = shaping.compute_centered_ranks(WITH_TIES)
    np.testing.assert_allclose(centered, [0.375, -0.5, -0.125, 0.375, -0.125], atol=1e-7)
    np.testing.assert_array_equal(shaping.compute_centered_ranks(jnp.full(7, 500.0)), 0.0)
    np.testing.assert_array_equal(shaping.compute_centered_ranks(jnp.ones(1)), [-0.5])


def test_a_generation_without_a_number_tells_nothing() -> None:
    unknown = jnp.full(4, jnp.nan)
    np.testing.assert_array_equal(shaping.failures_to_worst(unknown), 0.0)
    for shape in shaping.FITNESS_SHAPING.values():
        np.testing.assert_array_equal(shape(unknown), 0.0)


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
    known = jnp.array([3.0, 0.0, 1.0, 3.0, 1.0])
    weights, precision = shaping.weights_by_rank(known, best)
    np.testing.assert_array_equal(weights, [best[1], 0.0, 0.0, best[0], best[2]])
    assert precision == 1.0


@pytest.mark.parametrize("failure", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_failure_of_any_kind_ranks_last_and_has_no_share(failure: float) -> None:
    fitness = jnp.array([1.0, 2.0, failure, 1.0, failure])  # failures after the worst, so that a tie would be noticed
    assert set(np.asarray(shaping.compute_ranks(fitness))[[2, 4]]) == {0, 1}
    assert (np.asarray(shaping.compute_centered_ranks(fitness))[[2, 4]] == -0.375).all()
    best = shaping.log_rank_weights(4)
    weights, precision = (np.asarray(x) for x in shaping.weights_by_rank(fitness, best))
    assert (weights[[2, 4]] == 0.0).all()
    # Of three individuals each has the weights of 5 / 3 ranks: 0 to 1.67, 1.67 to 3.33, and 3.33 to 5.
    shares = [best[0] + best[1] * 2 / 3, best[1] / 3 + best[2] + best[3] / 3, best[3] * 2 / 3]
    np.testing.assert_allclose(weights[[1, 3, 0]], shares, rtol=1e-5)
    np.testing.assert_allclose(precision, np.square(best).sum() / np.square(weights).sum(), rtol=1e-5)
    assert all(np.isfinite(shape(fitness)).all() for shape in shaping.FITNESS_SHAPING.values())


def test_negative_weights_go_to_the_worst_that_is_known() -> None:
    """Failed individuals have no weight, and the sums of positive and negative weights are unchanged."""
    weights, precision = shaping.weights_by_rank(jnp.array([jnp.nan, 1.0, 2.0]), jnp.array([0.75, 0.25, -0.5]))
    np.testing.assert_allclose(weights, [0.0, -0.5, 1.0], atol=1e-6)
    np.testing.assert_allclose(precision, 0.75**2 + 0.25**2, rtol=1e-5)
    for failed, known in ((jnp.nan, 5.0), (jnp.nan, jnp.inf)):
        weights, precision = shaping.weights_by_rank(jnp.array([failed, known]), jnp.array([1.0, -0.5]))
        assert np.isfinite(weights).all()
        assert 0.0 <= precision <= 1.0


@pytest.mark.parametrize(
    ("fitness", "flat"),
    [
        ([2.0] * 4, True),
        ([2.0, 2.0, 2.0, jnp.nan], True),
        ([jnp.nan, jnp.inf, -jnp.inf, jnp.nan], True),
        ([jnp.nan, jnp.inf, 2.0, 2.0], True),
        ([jnp.nan, jnp.inf, jnp.nan, 2.0], True),  # nothing to compare it with
        ([jnp.nan, jnp.inf, 1.0, 2.0], False),
        ([2.0, 2.0, 2.0, 2.0000002], False),
    ],
)
def test_flat_fitness(fitness: list[float], flat: bool) -> None:
    assert bool(shaping.is_flat(jnp.array(fitness))) is flat


def test_squares_of_great_fitness_do_not_overflow() -> None:
    great = jnp.array([3e38, -3e38, 1e38, 0.0])
    np.testing.assert_allclose(
        shaping.standardized_fitness(great),
        shaping.standardized_fitness(jnp.array([3.0, -3.0, 1.0, 0.0])),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_array_equal(shaping.scaled_to_square(jnp.array([1e18, -3.0])), jnp.array([1e18, -3.0]))
