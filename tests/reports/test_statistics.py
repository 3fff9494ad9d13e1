"""Interquartile means, bootstrap intervals, profiles and probabilities of improvement equal SciPy and
manual results.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from evorl.reports.statistics import (
    bootstrap_interval,
    interquartile_mean,
    interquartile_mean_over_tasks,
    normalized,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)


def test_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    values = np.array([100.0, 1.0, 2.0, 3.0, 4.0, -100.0, 5.0, 6.0])
    assert interquartile_mean(values) == np.mean([2.0, 3.0, 4.0, 5.0])
    assert interquartile_mean(np.arange(10.0)) == np.arange(2.0, 8.0).mean()
    np.testing.assert_array_equal(interquartile_mean(np.stack([values, values + 1])), [3.5, 4.5])


@pytest.mark.parametrize("num_values", [1, 3, 4, 7, 10, 25])
def test_interquartile_mean_is_the_trimmed_mean_of_scipy(num_values: int) -> None:
    values = np.random.default_rng(num_values).normal(size=(3, num_values))
    np.testing.assert_allclose(interquartile_mean(values), scipy.stats.trim_mean(values, 0.25, axis=-1), rtol=1e-12)


def test_over_tasks_all_scores_are_one_pool() -> None:
    tasks = [np.array([0.0, 1.0, 2.0, 3.0]), np.array([10.0, 11.0, 12.0, 13.0])]
    assert interquartile_mean_over_tasks(tasks) == np.mean([2.0, 3.0, 10.0, 11.0])


@pytest.mark.parametrize("statistic", [np.mean, interquartile_mean])
def test_interval_is_that_of_scipy(statistic) -> None:
    values = np.random.default_rng(3).gamma(2.0, 50.0, size=12)
    theirs = scipy.stats.bootstrap(
        (values,),
        lambda x, axis: statistic(np.moveaxis(x, axis, -1)) if statistic is interquartile_mean else x.mean(axis),
        n_resamples=10_000,
        method="percentile",
        rng=np.random.default_rng(7),
    ).confidence_interval
    ours = bootstrap_interval(values, lambda x: statistic(x) if statistic is interquartile_mean else x.mean(axis=-1))
    # Two bootstraps of 10,000 samples differ by about 1 % of the interval's width.
    np.testing.assert_allclose(ours, theirs, atol=0.03 * (theirs.high - theirs.low))


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Percentile intervals of 20 normal samples cover the mean in about 92 % of cases, slightly less than 95 %."""
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(150, 20))
    intervals = np.array([bootstrap_interval(sample) for sample in samples])
    covered = np.mean((intervals[:, 0] <= 3.0) & (intervals[:, 1] >= 3.0))
    assert 0.86 <= covered <= 0.98
    # The width matches the normal approximation.
    widths = intervals[:, 1] - intervals[:, 0]
    expected = 2 * 1.96 * samples.std(axis=1) / np.sqrt(20)
    np.testing.assert_allclose(widths, expected, rtol=0.1)


def test_equal_values_have_equal_intervals() -> None:
    values = list(np.random.default_rng(0).normal(size=7))
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)
    assert bootstrap_interval([500.0] * 5) == (500.0, 500.0)


def test_seeds_are_drawn_within_their_task() -> None:
    """Bootstrap samples are drawn within each task: constant scores per task give no variance."""
    tasks = [np.full(5, 0.0), np.full(5, 1.0)]
    low, high = stratified_interval(tasks, interquartile_mean_over_tasks)
    assert (low, high) == (0.5, 0.5)
    assert bootstrap_interval(np.concatenate(tasks), interquartile_mean) == (0.0, 1.0)


def test_points_of_a_curve_are_drawn_together() -> None:
    values = np.array([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]])
    low, high = stratified_interval([values], lambda tasks: tasks[0].mean(axis=-1))
    np.testing.assert_allclose([low[1], high[1]], [10 * low[0], 10 * high[0]])
    assert (low[0], high[0]) == bootstrap_interval(values[0])


def test_a_profile_by_hand() -> None:
    """Tasks of 4 and 2 seeds have equal weight, and a score equal to the threshold is not above it."""
    tasks = [np.array([0.0, 1.0, 1.0, 2.0]), np.array([1.0, 3.0])]
    profile = performance_profile(tasks, np.array([-1.0, 0.0, 1.0, 2.5, 3.0]))
    np.testing.assert_allclose(profile, [1.0, (3 / 4 + 1) / 2, (1 / 4 + 1 / 2) / 2, (0 + 1 / 2) / 2, 0.0])
    drawn = performance_profile([np.stack([task, task]) for task in tasks], np.array([1.0]))
    np.testing.assert_allclose(drawn, [[0.375, 0.375]])


def test_improvement_by_hand_and_by_the_u_statistic() -> None:
    assert (
        probability_of_improvement([np.array([1.0, 2.0])], [np.array([1.0, 0.0, 3.0])]) == (0.5 + 1 + 0 + 1 + 1 + 0) / 6
    )
    random = np.random.default_rng(5)
    ours, theirs = ([random.integers(10, size=n).astype(float) for n in sizes] for sizes in ((7, 4), (5, 9)))
    expected = [scipy.stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(ours, theirs, strict=True)]
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(expected))
    assert probability_of_improvement(theirs, ours) == pytest.approx(1 - np.mean(expected))


def test_normalized_scores_run_from_the_lowest_to_the_highest() -> None:
    scaled = normalized([np.array([10.0, 20.0]), np.array([3.0])], [np.array([10.0, 20.0, 30.0]), np.array([3.0, 3.0])])
    np.testing.assert_allclose(scaled[0], [0.0, 0.5])
    np.testing.assert_allclose(scaled[1], [1.0])
