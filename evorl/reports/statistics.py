"""What several seeds reach together and how far that may be off; whether one algorithm is better than another.

The quantities are those of Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice.
Scores of several tasks are a list of arrays ``[..., n]``, one for each task with as many numbers as it has seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95

Statistic = Callable[[list[np.ndarray]], np.ndarray]


def mean(values: np.ndarray) -> np.ndarray:
    """The mean of ``values`` ``[..., n]``."""
    return values.mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of ``values`` ``[..., n]``, which leaves out ``n // 4`` at either end.

    Source: Agarwal et al. 2021, section 4.3; the same as ``scipy.stats.trim_mean(values, 0.25)``.
    """
    ends = values.shape[-1] // 4
    return mean(np.sort(values, axis=-1)[..., ends : values.shape[-1] - ends])


def interquartile_mean_over_tasks(tasks: list[np.ndarray]) -> np.ndarray:
    """The interquartile mean of all scores of all tasks together; their scales have to be alike."""
    return interquartile_mean(np.concatenate(tasks, axis=-1))


def stratified_interval(
    tasks: Sequence[np.ndarray], statistic: Statistic, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """The stratified percentile bootstrap interval of a statistic, at 95 %: seeds are drawn anew within each task.

    Args:
        tasks: the scores of each, ``[..., n]``; the axes before the last are drawn together.
        statistic: from such a list, with an axis for the resamples before the last one, to ``[..., resamples]``.
        seed: of the resampling, so that equal scores have equal intervals.
        resamples: how often all are drawn anew.

    Returns:
        Where the interval begins and where it ends, ``[...]`` each.

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
    """The percentile bootstrap interval of a statistic of one task's seeds, at 95 %.

    Args:
        values: one number for each seed, ``[n]``.
        statistic: from ``[..., n]`` to ``[...]``.
        seed: of the resampling, so that equal values have equal intervals.
    """
    low, high = stratified_interval([np.asarray(values)], lambda tasks: statistic(tasks[0]), seed)
    return float(low), float(high)


def performance_profile(tasks: Sequence[np.ndarray], thresholds: np.ndarray) -> np.ndarray:
    """The share of seeds that score more than each threshold, as the mean over tasks.

    Args:
        tasks: the scores of each, ``[..., n]``.
        thresholds: ``[K]``, on the scale of the scores.

    Returns:
        ``[K, ...]``, falling from 1 to 0.

    Source: Agarwal et al. 2021, section 4.2: the score distribution, the empirical tail distribution function.
    """
    at = np.asarray(thresholds, np.float64)
    shares = [np.mean(np.asarray(scores) > at.reshape(-1, *[1] * np.ndim(scores)), axis=-1) for scores in tasks]
    return np.mean(shares, axis=0)


def probability_of_improvement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
    """How likely a seed of ours scores more than one of theirs on the same task, as the mean over tasks.

    Equal scores count one half: on each task it is the U statistic of Mann and Whitney over the number of pairs.

    Args:
        ours: the scores on each task, ``[..., n]``.
        theirs: the scores on the same tasks, ``[..., m]``.

    Returns:
        From 0 to 1, ``[...]``.

    Source: Agarwal et al. 2021, section 4.3, P(X > Y).
    """
    shares = []
    for x, y in zip(ours, theirs, strict=True):
        difference = np.asarray(x)[..., :, None] - np.asarray(y)[..., None, :]
        shares.append(np.mean((difference > 0) + 0.5 * (difference == 0), axis=(-2, -1)))
    return np.mean(shares, axis=0)


def normalized(tasks: Sequence[np.ndarray], all_scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scores of several tasks on one scale: 0 is the lowest of all scores of a task, 1 the highest.

    Args:
        tasks: the scores of each, ``[n]``.
        all_scores: those that are compared, of each task, ``[m]``. Where all are equal, every score is 1.
    """
    scaled = []
    for scores, everything in zip(tasks, all_scores, strict=True):
        low, span = np.min(everything), np.ptp(everything)
        scaled.append((np.asarray(scores) - low) / span if span > 0 else np.ones(len(scores)))
    return scaled
