"""Means over seeds and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning.statistics import Summary, center, summarize


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
