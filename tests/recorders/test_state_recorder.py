"""``state.json`` during training."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.recorders.state_recorder import StateRecorder
from evorl.runs.files import RunFolderError
from evorl.runs.run_state import FAILED, FINISHED, RUNNING, STOPPED, RunState, read_state
from tests.support.errors import raises_naming
from tests.support.recorded_runs import NUM_ITERATIONS, STEPS, make_plan, make_row, record

TOTAL = NUM_ITERATIONS * STEPS


def read(path: Path) -> RunState:
    return read_state(path, path.with_name("run.log"))


def test_from_the_start_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    recorder = StateRecorder(path)
    recorder.start(make_plan())
    assert read(path) == RunState(RUNNING, TOTAL)
    recorder.write(make_row(NUM_ITERATIONS))
    recorder.close()
    recorder.close()
    assert read(path) == RunState(FINISHED, TOTAL)


def test_stopped_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    record(StateRecorder(path), last=5)
    assert read(path) == RunState(STOPPED, TOTAL)
    recorder = StateRecorder(path)
    assert read(path) == RunState(STOPPED, TOTAL)  # before it starts
    record(recorder, first=6)
    assert read(path) == RunState(FINISHED, TOTAL)


def test_a_resumed_run_that_cannot_start_keeps_its_state(tmp_path: Path) -> None:
    """For example, if an option of another recorder is wrong: the finished run itself has not changed."""
    path = tmp_path / "state.json"
    record(StateRecorder(path), last=NUM_ITERATIONS)
    recorder = StateRecorder(path)
    recorder.failure(ValueError("no address"))
    recorder.close()
    assert read(path) == RunState(FINISHED, TOTAL)


def test_a_failure_stays_said(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    recorder = StateRecorder(path)
    recorder.start(make_plan())
    recorder.failure(ArithmeticError("policy_loss became nan\nin line 3"))
    recorder.close()
    assert read(path) == RunState(FAILED, TOTAL, "ArithmeticError: policy_loss became nan")


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first = StateRecorder(path)
    with raises_naming(RunFolderError, tmp_path, "being trained"):
        StateRecorder(path)
    first.start(make_plan())
    with raises_naming(RunFolderError, tmp_path, "being trained"):
        StateRecorder(path)
    first.close()
    StateRecorder(path).close()


def test_a_full_disk_does_not_hide_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = StateRecorder(tmp_path / "state.json")
    recorder.start(make_plan())

    def full(state: RunState) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder._file, "write", full)
    recorder.failure(ValueError("the first one"))
    recorder.close()
