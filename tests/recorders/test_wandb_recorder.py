"""Weights & Biases, with a stand-in for the library."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from evorl.recorders import WandbRecorder
from evorl.runs.files import RunFolderError
from tests.support.recorded_runs import make_plan, make_row, record


class FakeRun:
    def __init__(self, settings: dict) -> None:
        self.settings, self.rows, self.axes, self.finished = settings, [], [], False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, row: dict) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    started: list[FakeRun] = []

    def init(**settings) -> FakeRun:
        started.append(FakeRun(settings))
        return started[-1]

    library = types.ModuleType("wandb")
    library.init = init  # pyright: ignore[reportAttributeAccessIssue]
    library.util = types.SimpleNamespace(generate_id=lambda: f"id{len(started)}")  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "wandb", library)
    return started


def test_rows_are_sent_over_environment_steps(tmp_path: Path, runs: list[FakeRun]) -> None:
    record(WandbRecorder(tmp_path / "run-7", config={"seed": 1}))
    (run,) = runs
    assert run.rows == [make_row(i) for i in range(1, 13)]
    assert ("*", "timesteps") in run.axes
    assert run.finished
    settings = run.settings
    assert (settings["mode"], settings["name"], settings["config"]) == ("offline", "run-7", {"seed": 1})


def test_a_resumed_run_goes_on_as_the_same_one(tmp_path: Path, runs: list[FakeRun]) -> None:
    record(WandbRecorder(tmp_path), last=3)
    record(WandbRecorder(tmp_path), first=4)
    assert [run.settings["id"] for run in runs] == ["id0", "id0"]
    assert runs[1].settings["resume"] == "allow"


def test_a_missing_library_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="needs the package wandb: pip install wandb, or turn it off"):
        WandbRecorder(tmp_path).start(make_plan())


def test_unknown_modes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="offline, online or disabled, got 'on'"):
        WandbRecorder(tmp_path, mode="on")


@pytest.mark.parametrize("place", ["wandb", "wandb/run_id.txt"])
def test_nothing_is_written_through_a_link(tmp_path: Path, runs: list[FakeRun], place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(tmp_path / "target")
    with pytest.raises(RunFolderError, match="is a symbolic link"):
        WandbRecorder(tmp_path).start(make_plan())
    assert not (tmp_path / "target").exists()
    assert not runs


def test_an_id_that_is_none_is_refused(tmp_path: Path, runs: list[FakeRun]) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "run_id.txt").write_text("../../elsewhere")
    with pytest.raises(RunFolderError, match="holds no id of a run"):
        WandbRecorder(tmp_path).start(make_plan())
    assert not runs
