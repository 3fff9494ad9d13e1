"""``stop``: a training ends at a score, after evaluations without improvement, or after a time."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from evorl.execution.early_stop import EarlyStop
from evorl.execution.session import RunSession
from evorl.runs.recorder import Recorder, Row
from evorl.runs.run_state import FINISHED
from evorl.runs.spec import RunSpec
from evorl.runs.spec_parts import StopSettings
from evorl.training.run import train
from evorl.training.start import RunPlace, RunStart, Trained
from tests.support.errors import raises_naming
from tests.support.small_workflows import small


def after(stop: EarlyStop, *scores: float) -> str | None:
    """Return the reason after these evaluations."""
    best = -math.inf
    for score in scores:
        stop.evaluated(100, score, score > best)
        best = max(best, score)
    return stop.reason if stop.is_met() else None


def test_a_score_ends_the_training_once_it_is_reached() -> None:
    assert after(EarlyStop(StopSettings(at=475.0)), 100.0, 474.9) is None
    assert "475" in str(after(EarlyStop(StopSettings(at=475.0)), 100.0, 475.0))
    assert "12,345.6" in str(after(EarlyStop(StopSettings(at=12_000.0)), 12_345.6))


def test_patience_counts_evaluations_without_a_better_one() -> None:
    assert after(EarlyStop(StopSettings(patience=2)), 1.0, 0.0, 2.0, 2.0) is None
    assert "patience=2" in str(after(EarlyStop(StopSettings(patience=2)), 1.0, 0.0, 2.0, 2.0, 1.0))


def test_patience_ignores_evaluations_without_episodes() -> None:
    stop = EarlyStop(StopSettings(patience=2))
    assert after(stop, math.nan, 1.0, math.nan, math.nan, math.nan, 0.0) is None
    assert "patience=2" in str(after(stop, 0.0, math.nan, -1.0, -1.0))


def test_patience_is_kept_over_a_resume() -> None:
    first = EarlyStop(StopSettings(patience=3))
    assert after(first, 1.0, 0.0, 0.0) is None
    again = EarlyStop.resumed(first.settings, first.to_json())
    again.evaluated(100, 0.5, is_best=False)
    assert again.is_met()
    assert EarlyStop(StopSettings(at=1.0)).to_json() == {}


def test_hours_begin_with_the_training() -> None:
    now = [100.0]
    stop = EarlyStop(StopSettings(hours=2.0), clock=lambda: now[0])
    now[0] += 7199.0
    assert not stop.is_met()
    now[0] += 1.0
    assert stop.is_met()


@pytest.mark.parametrize(
    ("stop", "parts"),
    [
        (475, ["stop", "{at: 475}", "475"]),
        ({"patience": 0}, ["stop.patience", "0"]),
        ({"hours": 0}, ["stop.hours", "0"]),
        ({"at": "high"}, ["stop.at", "high"]),
        ({"patients": 3}, ["patients", "patience"]),
    ],
)
def test_a_wrong_condition_is_refused(stop: Any, parts: list[str]) -> None:
    with raises_naming(ValueError, *parts):
        RunSpec.from_config({"stop": stop})


@pytest.mark.parametrize("other", [{"sweep": {"discount": [0.9, 0.99]}}, {"parameters": {"port": 0}}])
def test_trainings_that_are_not_single_refuse_it(other: dict[str, Any]) -> None:
    with raises_naming(ValueError, "stop", "together"):
        _ = RunSpec.from_config({"stop": {"at": 1.0}, **other}).kind


def trained(root: Path, stop: dict[str, float], eval_interval: int = 64) -> Trained:
    config = {
        "workflow": "evorl.algorithms.ppo.PPOWorkflow",
        "env": {"library": "gymnax", "name": "CartPole-v1"},
        "agent": {"network": {"torso": [8]}},
        "num_envs": 4,
        "rollout_length": 16,
        "total_timesteps": 4096,
        "eval_episodes": 2,
        "num_minibatches": 1,
        "eval_interval": eval_interval,
        "log_interval": 64,
        "checkpoint_interval": 0,
        "eval_at_start": False,
        "devices": 1,
        "recorders": {"tensorboard": False, "learning_curve": False, "progress": False},
        "stop": stop,
    }
    return train(RunSpec.from_config(config), RunStart(RunPlace(root, "run"), None, "a run", [], {}, root))


def test_a_run_that_meets_a_condition_is_finished(tmp_path: Path) -> None:
    """It keeps its last state, and ends neither as stopped nor with an offer to resume."""
    result = trained(tmp_path, {"at": 1.0})
    assert not result.stopped
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["timesteps"]) for row in rows] == [64]
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir()) if path.is_dir()] == ["1"]
    assert FINISHED in (tmp_path / "run" / "state.json").read_text()
    log = (tmp_path / "run" / "run.log").read_text()
    assert "stop.at=1" in log
    assert "To resume" not in log


def test_a_time_limit_ends_with_an_evaluation(tmp_path: Path) -> None:
    assert not trained(tmp_path, {"hours": 1e-9}, eval_interval=2048).stopped
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["timesteps"]) for row in rows] == [64]
    assert float(rows[0]["eval/episode_return"]) > 0.0
    assert "stop.hours" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize("reading", range(1, 6))
def test_a_time_limit_ends_with_an_evaluation_whenever_it_is_reached(
    reading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evorl.execution.training_loop.SECONDS_PER_CHUNK", 0.0)
    times = itertools.chain([0.0] * reading, itertools.repeat(3600.0))
    stop = EarlyStop(StopSettings(hours=1.0), clock=lambda: next(times))
    rows: list[Row] = []

    class Rows(Recorder):
        def write(self, row: Row) -> None:
            rows.append(row)

    workflow = small("ppo", total_timesteps=1280, eval_interval=1280, log_interval=64)
    with RunSession(Rows(), early_stop=stop) as session:
        workflow.learn(None, key=0, session=session)
    assert stop.reason is not None
    assert rows[-1]["timesteps"] < 1280
    assert "eval/episode_return" in rows[-1]


def test_a_time_limit_after_a_stop_does_not_complete_the_run() -> None:
    times = itertools.chain([0.0], itertools.repeat(3600.0))
    stop = EarlyStop(StopSettings(hours=1.0), clock=lambda: next(times))
    session = RunSession(should_stop=lambda: True, early_stop=stop)
    assert session.should_stop()
    assert session.early_stop.reason is None


def test_a_judge_may_stop_a_training_after_an_evaluation() -> None:
    def judge(timesteps: int, score: float) -> str | None:
        return f"{score} at {timesteps}" if timesteps >= 200 else None

    stop = EarlyStop.resumed(StopSettings(), None, judge)
    stop.evaluated(100, 0.5, is_best=True)
    assert not stop.is_met()
    stop.evaluated(200, 0.25, is_best=False)
    assert stop.is_met()
    assert stop.reason == "0.25 at 200"
