"""Means over seeds and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning.statistics import Summary, bootstrap_interval, center, interquartile_mean, summarize


def test_interquartile_mean_leaves_out_a_quarter_at_either_end():
    values = np.array([100.0, 1.0, 2.0, 3.0, 4.0, -100.0, 5.0, 6.0])
    assert interquartile_mean(values) == np.mean([2.0, 3.0, 4.0, 5.0])
    assert interquartile_mean(np.arange(10.0)) == np.arange(2.0, 8.0).mean()
    np.testing.assert_array_equal(interquartile_mean(np.stack([values, values + 1])), [3.5, 4.5])


def test_interval_covers_the_mean_as_often_as_it_says():
    """Of many samples of 20 normal numbers: percentile intervals are a little narrow, 92 % instead of 95 %."""
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(150, 20))
    intervals = np.array([bootstrap_interval(sample) for sample in samples])
    covered = np.mean((intervals[:, 0] <= 3.0) & (intervals[:, 1] >= 3.0))
    assert 0.86 <= covered <= 0.98
    # The width is that of the normal approximation.
    widths = intervals[:, 1] - intervals[:, 0]
    expected = 2 * 1.96 * samples.std(axis=1) / np.sqrt(20)
    np.testing.assert_allclose(widths, expected, rtol=0.1)


def test_equal_values_have_equal_intervals():
    values = list(np.random.default_rng(0).normal(size=7))
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)
    assert bootstrap_interval([500.0] * 5) == (500.0, 500.0)


@pytest.mark.parametrize("num_seeds", [1, 3, 5, 10])
def test_summary_follows_the_number_of_seeds(num_seeds):
    values = list(np.random.default_rng(0).normal(size=num_seeds))
    summary = summarize(values)
    assert summary.value == center(values)
    if num_seeds < 5:
        assert summary == Summary(pytest.approx(np.mean(values)))
        return
    assert summary.is_iqm == (num_seeds >= 10)
    assert min(values) <= summary.low < summary.value < summary.high <= max(values)
