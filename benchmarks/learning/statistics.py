"""Few numbers, one of each seed: their mean or interquartile mean, and how far it may be off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

SEEDS_FOR_INTERVAL = 5
SEEDS_FOR_IQM = 10
RESAMPLES = 10_000
LEVEL = 0.95


def mean(values: np.ndarray) -> np.ndarray:
    """The mean of ``values`` ``[..., n]``."""
    return values.mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of ``values`` ``[..., n]``, which leaves out ``n // 4`` at either end.

    Source: Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice.
    """
    ends = values.shape[-1] // 4
    return mean(np.sort(values, axis=-1)[..., ends : values.shape[-1] - ends])


def center(values: Sequence[float]) -> float:
    """What several seeds ``[n]`` reach together: the interquartile mean from 10 seeds on, the mean of fewer."""
    statistic = mean if len(values) < SEEDS_FOR_IQM else interquartile_mean
    return float(statistic(np.asarray(values, dtype=np.float64)))


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[np.ndarray], np.ndarray] = mean, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic, at 95 %.

    Args:
        values: one number for each seed, ``[n]``.
        statistic: from ``[..., n]`` to ``[...]``.
        seed: of the resampling, so that equal values have equal intervals.
    """
    numbers = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    low, high = np.quantile(statistic(numbers[draws]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What several seeds reach together, and how far that may be off.

    Attributes:
        value: the mean, or the interquartile mean.
        is_iqm: which of them.
        low: where its 95 % interval begins; ``None`` where there are too few seeds for one.
        high: where it ends.
    """

    value: float
    is_iqm: bool = False
    low: float | None = None
    high: float | None = None


def summarize(values: Sequence[float]) -> Summary:
    """The center of ``values`` ``[n]``, with its interval from 5 seeds on."""
    if len(values) < SEEDS_FOR_INTERVAL:
        return Summary(center(values))
    is_iqm = len(values) >= SEEDS_FOR_IQM
    interval = bootstrap_interval(values, interquartile_mean if is_iqm else mean)
    return Summary(center(values), is_iqm, *interval)
