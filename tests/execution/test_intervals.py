"""Events due after an iteration, and chunks that end at them."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.execution.intervals import EveryIterations, EverySteps, every


def test_iterations_that_are_alike_are_counted() -> None:
    assert every(0, 64) is None
    assert every(1, 64) == EveryIterations(1)
    assert every(640, 64) == EveryIterations(10)
    assert every(640, 64, num_seeds=3) == EveryIterations(10)
    rows = every(256, 64)
    assert every(700, 64, rows=rows) == EveryIterations(12)  # one row every 4
    assert every(128, 64, rows=rows) == EveryIterations(2)
    due = EveryIterations(4).is_due(np.arange(6, 15), np.zeros(9))
    assert np.flatnonzero(due).tolist() == [1, 5]
    assert EveryIterations(4).until_due(6, 0, 1) == 2
    assert EveryIterations(4).until_due(8, 0, 1) == 4


@pytest.mark.parametrize("timesteps", [1e15, 1e18, 1e19, 1e22, 1e300, 1.7e308])
@pytest.mark.parametrize("steps_per_iteration", [0, 1, 64])
@pytest.mark.parametrize("rows", [None, EveryIterations(3), EveryIterations(2**62)])
def test_a_huge_interval_is_never_due(timesteps: float, steps_per_iteration: int, rows: EveryIterations | None) -> None:
    interval = every(timesteps, steps_per_iteration, num_seeds=3, rows=rows)
    assert interval is not None
    assert not interval.is_due(np.arange(5), 1000 * np.arange(5)).any()
    assert interval.until_due(4, 4000, 1000) > 1e11


def test_steps_that_differ_are_summed() -> None:
    interval = every(100, 0, num_seeds=2)
    assert interval == EverySteps(200)
    timesteps = np.array([150, 199, 200, 390, 620, 799, 801])
    assert np.flatnonzero(interval.is_due(np.arange(7), timesteps)).tolist() == [1, 3, 5]


@pytest.mark.parametrize("most", [1, 7, 50, 1000])
def test_nothing_that_is_due_is_passed_over(most: int) -> None:
    interval = EverySteps(100)
    rng = np.random.default_rng(most)
    timesteps = 0
    for _ in range(100):
        length = interval.until_due(0, timesteps, most)
        assert length >= 1
        steps = timesteps + np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, length))])
        assert not interval.is_due(np.arange(length + 1), steps)[:-1].any()
        timesteps = int(steps[-1])
