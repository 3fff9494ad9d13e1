"""Means or interquartile means over few seeds, with their uncertainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from evorl.reports.statistics import bootstrap_interval, interquartile_mean, mean

SEEDS_FOR_INTERVAL = 5
SEEDS_FOR_IQM = 10


def center(values: Sequence[float]) -> float:
    """Return the interquartile mean of the seeds ``[n]``; the mean if there are fewer than 10."""
    statistic = mean if len(values) < SEEDS_FOR_IQM else interquartile_mean
    return float(statistic(np.asarray(values, dtype=np.float64)))


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean over seeds, with its confidence interval.

    Attributes:
        value: the mean, or the interquartile mean.
        is_iqm: true for the interquartile mean.
        low: lower end of the 95 % interval; ``None`` for too few seeds.
        high: its upper end.
    """

    value: float
    is_iqm: bool = False
    low: float | None = None
    high: float | None = None


def summarize(values: Sequence[float]) -> Summary:
    """Return the center of ``values`` ``[n]``, with its interval from 5 seeds on."""
    if len(values) < SEEDS_FOR_INTERVAL:
        return Summary(center(values))
    is_iqm = len(values) >= SEEDS_FOR_IQM
    interval = bootstrap_interval(values, interquartile_mean if is_iqm else mean)
    return Summary(center(values), is_iqm, *interval)
