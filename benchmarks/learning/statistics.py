"""Few numbers, one of each seed: their mean or interquartile mean, and how far it may be off."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from evorl.reports.statistics import bootstrap_interval, interquartile_mean, mean

SEEDS_FOR_INTERVAL = 5
SEEDS_FOR_IQM = 10


def center(values: Sequence[float]) -> float:
    """What several seeds ``[n]`` reach together: the interquartile mean from 10 seeds on, the mean of fewer."""
    statistic = mean if len(values) < SEEDS_FOR_IQM else interquartile_mean
    return float(statistic(np.asarray(values, dtype=np.float64)))


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
