"""Describes the result of a comparison of two groups in one sentence."""

from __future__ import annotations

import math

from evorl.ops.terminal_text import counted
from evorl.reports.comparison_charts import SEEDS_TO_DECIDE, Improvement

MAX_MORE_SEEDS = 1000  # limit above which more seeds are not suggested


def verdict(pair: Improvement, num_seeds: int) -> str:
    """Describe which of two groups is better, how certain that is, and how many more seeds would probably settle it.

    This number assumes the same probability, and an interval that shrinks with the square root of the number of seeds.

    Args:
        pair: the comparison.
        num_seeds: number of seeds of the smaller group.
    """
    pair = pair if pair.probability >= 0.5 else pair.turned()
    claim = f"a seed of {pair.better} scores higher than a seed of {pair.than} with probability {pair.probability:.2f}"
    if pair.interval is None:
        return f"Undecided: {claim}, but there are too few seeds: train at least {SEEDS_TO_DECIDE} of each."
    low, high = pair.interval
    claim += f" (95 % interval {low:.2f} to {high:.2f})"
    if low > 0.5:
        return f"{pair.better} is better than {pair.than}: {claim}."
    more = _more_seeds(pair.probability - 0.5, pair.probability - low, num_seeds)
    if more is None:
        return f"No difference between {pair.better} and {pair.than} is visible: {claim}."
    return f"Undecided: {claim}. If this probability holds, about {counted(more, 'more seed')} of each would settle it."


def _more_seeds(difference: float, width: float, num_seeds: int) -> int | None:
    """Return how many more seeds, at least 1, reduce ``width`` to ``difference``; ``None`` above ``MAX_MORE_SEEDS``."""
    if difference <= 0.0 or num_seeds * (width / difference) ** 2 > num_seeds + MAX_MORE_SEEDS:
        return None
    return max(1, math.ceil(num_seeds * (width / difference) ** 2) - num_seeds)
