"""Bookkeeping of a run: rows, evaluations, checkpoints and divergence, without any training."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evorl.execution.intervals import EveryIterations, EverySteps
from evorl.execution.session import Intervals, Pace, RunSession, SessionRules, TrainingDiverged
from evorl.runs.recorder import Recorder, RunPlan
from evorl.types import PyTreeDict, State
from tests.support.errors import raises_naming


class Records(Recorder):
    def __init__(self) -> None:
        self.rows: list[dict[str, float | int]] = []
        self.failures: list[Exception] = []

    def write(self, row: Any) -> None:
        self.rows.append(dict(row))

    def failure(self, error: Exception) -> None:
        self.failures.append(error)


class Shelf:
    score_over = 1

    def __init__(self) -> None:
        self.saved: list[tuple[int, float | None]] = []
        self.progress: dict[str, Any] = {}

    def save(self, state: State, progress: dict[str, Any], score: float | None) -> None:
        self.saved.append((progress["iterations"], score))
        self.progress = progress


def session_of(rules: SessionRules, progress: dict[str, Any] | None = None, **resources: Any) -> RunSession:
    session = RunSession(progress=progress, **resources)
    first = progress or {"iterations": 0, "timesteps": 0}
    session.begin(RunPlan("x", 100, first["timesteps"], first["iterations"], 1, 1), rules, first["timesteps"])
    return session


def iterate(session: RunSession, number: int, returns: list[float], total: int = 10**9) -> None:
    for _ in range(number):
        session.advance(1, 4, 4, PyTreeDict(loss=np.array([float(session.iterations)])))
        session.complete_iteration(
            lambda: PyTreeDict(episode_return=np.float32(returns.pop(0))), State, session.iterations == total
        )


def test_rows_are_means_over_their_interval_and_evaluations_add_columns() -> None:
    records = Records()
    session = session_of(SessionRules(Intervals(EveryIterations(2), EverySteps(16))), recorder=records)
    iterate(session, 4, [3.0])
    assert [(row["iterations"], row["timesteps"], row["train/loss"]) for row in records.rows] == [
        (2, 8, 0.5),
        (4, 16, 2.5),
    ]
    assert ["eval/episode_return" in row for row in records.rows] == [False, True]
    assert session.best_score == 3.0


def test_the_speed_excludes_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate() -> PyTreeDict:
        clock.seconds += 5.0
        return PyTreeDict(episode_return=np.float32(1.0))

    clock = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.seconds)
    records = Records()
    session = session_of(SessionRules(Intervals(None, EveryIterations(1)), pace=Pace(0)), recorder=records)
    for _ in range(2):
        clock.seconds += 0.5
        session.advance(1, 1000, 1000, PyTreeDict())
        session.complete_iteration(evaluate, State)
    assert [row["time/steps_per_second"] for row in records.rows] == [2000.0, 2000.0]
    assert [row["time/evaluation_seconds"] for row in records.rows] == [5.0, 5.0]


def test_the_best_score_and_due_checkpoints_are_saved() -> None:
    shelf = Shelf()
    rules = SessionRules(Intervals(None, EveryIterations(1), EveryIterations(3)))
    session = session_of(rules, checkpointer=shelf)
    iterate(session, 5, [2.0, 1.0, 1.0, 5.0, 4.0])
    assert shelf.saved == [(1, 2.0), (3, 1.0), (4, 5.0)]
    assert not session.is_saved


def test_the_last_iteration_is_evaluated_written_and_saved() -> None:
    records, shelf = Records(), Shelf()
    rules = SessionRules(Intervals(EveryIterations(9), EveryIterations(9), EveryIterations(9)))
    session = session_of(rules, recorder=records, checkpointer=shelf)
    iterate(session, 2, [-1.0], total=2)
    assert [row["iterations"] for row in records.rows] == [2]
    assert shelf.saved == [(2, -1.0)]
    assert session.is_saved


def test_a_resumed_session_continues_means_and_best_score() -> None:
    shelf, records = Shelf(), Records()
    rules = SessionRules(Intervals(EveryIterations(4), EveryIterations(3), EveryIterations(3)))
    iterate(session_of(rules, checkpointer=shelf), 3, [7.0])
    session = session_of(rules, progress=shelf.progress, recorder=records, checkpointer=shelf)
    assert (session.best_score, session.iterations, session.is_saved) == (7.0, 3, True)
    iterate(session, 1, [])
    assert records.rows[0]["train/loss"] == 3.0  # written with the evaluation of iteration 3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_metric_that_is_not_finite_ends_the_run(bad: float) -> None:
    records, shelf = Records(), Shelf()
    rules = SessionRules(Intervals(checkpoints=EveryIterations(1)), steps_per_iteration=4, optional_metrics=("maybe",))
    session = session_of(rules, recorder=records, checkpointer=shelf)
    iterate(session, 1, [])
    metrics = PyTreeDict(maybe=np.full(3, np.nan), loss=np.array([0.0, bad, 1.0]))
    with pytest.raises(TrainingDiverged) as error, session.reporting_failure():
        session.advance(3, 12, 4, metrics)
    for part in (f"loss became {bad}", "iteration 3 (12 steps)", "at 4 steps, is kept", "learning rate"):
        assert part in str(error.value)
    assert records.failures == [error.value]


def test_an_error_of_the_recorder_stops_the_run_and_is_raised_at_its_end() -> None:
    class Broken(Recorder):
        def write(self, row: Any) -> None:
            raise OSError(f"no row {row['iterations']}")

    rules = SessionRules(Intervals(EveryIterations(1)))
    session = session_of(rules, recorder=Broken())
    with pytest.raises(OSError, match="no row 1"), session.reporting_failure():
        assert not session.should_stop()
        iterate(session, 2, [])
        assert session.should_stop()
    assert not session.should_stop(), "the error was reported, and does not stop another training"
    with pytest.raises(OSError, match="no row 3"):
        iterate(session, 1, [])
    with pytest.raises(OSError, match="no row 1"):  # in a loop that does not report failures, at once
        iterate(session_of(rules, recorder=Broken()), 1, [])


def test_an_error_after_the_training_is_not_one_of_the_training() -> None:
    """A message that could not be written marked a finished run as failed."""
    records = Records()
    session = session_of(SessionRules(Intervals()), recorder=records)
    with raises_naming(OSError, "no message"), session:
        with session.reporting_failure():
            iterate(session, 1, [])
        raise OSError("no message")
    assert records.failures == []


@pytest.mark.parametrize("is_reported", [False, True])
def test_an_error_in_a_session_is_reported_once(is_reported: bool) -> None:
    """Also before the training, and if a caller raises another error with more advice."""
    records = Records()
    session = session_of(SessionRules(Intervals()), recorder=records)
    with raises_naming(OSError, "no port: choose another"), session:
        with contextlib.suppress(ValueError), session.reporting_failure() if is_reported else contextlib.nullcontext():
            raise ValueError("no port")
        raise OSError("no port: choose another")
    assert [type(error) for error in records.failures] == [ValueError if is_reported else OSError]


def test_a_session_closes_everything_it_owns_and_reports_the_first_error() -> None:
    closed: list[str] = []

    def fails() -> None:
        closed.append("b")
        raise OSError("disk")

    session = RunSession(closes=(lambda: closed.append("a"), fails, lambda: closed.append("c")))
    with raises_naming(OSError, "disk"), session:
        pass
    assert closed == ["a", "b", "c"]
