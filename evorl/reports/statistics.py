"""Statistics over seeds: aggregate scores with bootstrap intervals, and comparisons of two algorithms.

The quantities follow Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice.
Scores of several tasks are a list of arrays ``[..., n]``, one per task, where n is the number of its seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95

Statistic = Callable[[list[np.ndarray]], np.ndarray]


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of ``values`` ``[..., n]`` over the last axis."""
    return values.mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of ``values`` ``[..., n]``, without ``n // 4`` values at either end.

    Source: Agarwal et al. 2021, section 4.3; the same as ``scipy.stats.trim_mean(values, 0.25)``.
    """
    ends = values.shape[-1] // 4
    return mean(np.sort(values, axis=-1)[..., ends : values.shape[-1] - ends])


def interquartile_mean_over_tasks(tasks: list[np.ndarray]) -> np.ndarray:
    """Return the interquartile mean of the pooled scores of all tasks, which must be on the same scale."""
    return interquartile_mean(np.concatenate(tasks, axis=-1))


def stratified_interval(
    tasks: Sequence[np.ndarray], statistic: Statistic, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % stratified percentile bootstrap interval of a statistic: seeds are resampled within each task.

    Args:
        tasks: scores of each task, ``[..., n]``; the axes before the last are resampled together.
        statistic: function of ``tasks`` with a resample axis before the last axis; returns ``[..., resamples]``.
        seed: seed of the resampling, so that equal scores have equal intervals.
        resamples: number of resamples.

    Returns:
        Lower and upper end of the interval, ``[...]`` each.

    Source: Agarwal et al. 2021, section 4.1.
    """
    random = np.random.default_rng(seed)
    numbers = [np.asarray(scores, dtype=np.float64) for scores in tasks]
    drawn = [x[..., random.integers(x.shape[-1], size=(resamples, x.shape[-1]))] for x in numbers]
    low, high = np.quantile(statistic(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=-1)
    return low, high


def bootstrap_interval(
    values: Sequence[float] | np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = mean, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a statistic of one task's seeds.

    Args:
        values: one number per seed, ``[n]``.
        statistic: function from ``[..., n]`` to ``[...]``.
        seed: seed of the resampling, so that equal values have equal intervals.
    """
    low, high = stratified_interval([np.asarray(values)], lambda tasks: statistic(tasks[0]), seed)
    return float(low), float(high)


def performance_profile(tasks: Sequence[np.ndarray], thresholds: np.ndarray) -> np.ndarray:
    """Return the fraction ``[K, ...]`` of seeds that score above each threshold, averaged over tasks.

    Args:
        tasks: scores of each task, ``[..., n]``.
        thresholds: thresholds ``[K]``, on the scale of the scores.

    Source: Agarwal et al. 2021, section 4.2: the score distribution, the empirical tail distribution function.
    """
    at = np.asarray(thresholds, np.float64)
    shares = [np.mean(np.asarray(scores) > at.reshape(-1, *[1] * np.ndim(scores)), axis=-1) for scores in tasks]
    return np.mean(shares, axis=0)


def probability_of_improvement(x_scores: Sequence[np.ndarray], y_scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the probability that a score of ``x_scores`` exceeds one of ``y_scores``, averaged over tasks.

    Ties count one half: on each task, the probability is the Mann-Whitney U statistic divided by the number of pairs.

    Args:
        x_scores, y_scores: scores on each task, ``[..., n]`` and ``[..., m]``.

    Returns:
        Probability from 0 to 1, ``[...]``.

    Source: Agarwal et al. 2021, section 4.3, P(X > Y).
    """
    shares = []
    for x, y in zip(x_scores, y_scores, strict=True):
        difference = np.asarray(x)[..., :, None] - np.asarray(y)[..., None, :]
        shares.append(np.mean((difference > 0) + 0.5 * (difference == 0), axis=(-2, -1)))
    return np.mean(shares, axis=0)


def normalized(tasks: Sequence[np.ndarray], all_scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scale the scores of several tasks: 0 is the lowest of all scores of a task, 1 the highest.

    Args:
        tasks: scores of each task, ``[n]``.
        all_scores: scores of all compared groups on each task, ``[m]``. If all are equal, every result is 1.
    """
    scaled = []
    for scores, everything in zip(tasks, all_scores, strict=True):
        low, span = np.min(everything), np.ptp(everything)
        scaled.append((np.asarray(scores) - low) / span if span > 0 else np.ones(len(scores)))
    return scaled
