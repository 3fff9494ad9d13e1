"""Summaries of seeds, and comparisons with published seeds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning.statistics import improvement, summarize


def test_summary_has_mean_interquartile_mean_and_interval_of_the_mean():
    values = [0.0, 4.0, 5.0, 6.0, 100.0]
    summary = summarize(values)
    assert (summary.mean, summary.iqm) == (23.0, 5.0)
    low, high = summary.interval
    assert min(values) <= low < 23.0 < high <= max(values)
    assert high > 40.0  # the interval of the interquartile mean would be as wide only with fewer seeds
    assert summarize(values) == summary


def test_a_single_seed_has_no_interval():
    assert summarize([3.0]).interval is None


def test_probability_of_improvement_counts_pairs_and_resamples_both_sides():
    compared = improvement([1.0, 4.0], [2.0, 3.0, 4.0])
    assert compared.probability == pytest.approx((0 + 0 + 0 + 1 + 1 + 0.5) / 6)
    assert compared.low < compared.probability < compared.high
    only_theirs = improvement([3.0], [1.0, 2.0, 4.0, 5.0])
    assert (only_theirs.low, only_theirs.high) != (0.5, 0.5)


def test_more_seeds_narrow_the_interval():
    random = np.random.default_rng(0)
    few, many = (improvement(random.normal(size=n), random.normal(size=n)) for n in (5, 50))
    assert many.high - many.low < few.high - few.low
