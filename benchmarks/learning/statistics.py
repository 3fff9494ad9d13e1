"""Mean, interquartile mean and bootstrap interval over the seeds of a task, and the comparison with published seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from evorl.reports.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean,
    probability_of_improvement,
    stratified_interval,
)


@dataclasses.dataclass(frozen=True)
class Summary:
    """Scores of several seeds.

    Attributes:
        mean: their mean.
        iqm: their interquartile mean.
        interval: 95 % stratified bootstrap interval of the mean; ``None`` for a single seed.
    """

    mean: float
    iqm: float
    interval: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Improvement:
    """Probability that a seed of ours exceeds a published seed, with its 95 % stratified bootstrap interval."""

    probability: float
    low: float
    high: float


def summarize(values: Sequence[float]) -> Summary:
    """Return mean, interquartile mean and interval of the scores ``[n]`` of n seeds."""
    scores = np.asarray(values, dtype=np.float64)
    interval = bootstrap_interval(scores) if len(values) > 1 else None
    return Summary(float(mean(scores)), float(interquartile_mean(scores)), interval)


def improvement(ours: Sequence[float], theirs: Sequence[float]) -> Improvement:
    """Return P(ours > theirs) of scores ``[n]`` and ``[m]``; ties count one half, the interval resamples both."""
    scores = [np.asarray(ours, np.float64), np.asarray(theirs, np.float64)]
    low, high = stratified_interval(scores, lambda drawn: probability_of_improvement(drawn[:1], drawn[1:]))
    return Improvement(float(probability_of_improvement(scores[:1], scores[1:])), float(low), float(high))
