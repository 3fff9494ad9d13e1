"""Weights & Biases: one offline run of the real library, and a fake for everything else."""

from __future__ import annotations

import re
import sys
import time
import types
from pathlib import Path

import pytest

from evorl.recorders import WandbRecorder
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.recorded_runs import make_plan, make_row, record
from tests.support.waiting import wait_until


class FakeRun:
    def __init__(self, settings: dict) -> None:
        self.settings, self.rows, self.axes, self.finished = settings, [], [], False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, row: dict) -> None:
        self.rows.append(row)

    def finish(self, exit_code: int | None = None) -> None:
        self.finished, self.exit_code = True, exit_code


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    started: list[FakeRun] = []

    def init(**settings) -> FakeRun:
        started.append(FakeRun(settings))
        return started[-1]

    library = types.ModuleType("wandb")
    library.init = init  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "wandb", library)
    return started


def test_the_real_library_keeps_the_rows_offline_and_goes_on_as_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("wandb", "wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record(WandbRecorder(tmp_path, config={"seed": 1}), last=6)
    time.sleep(1 - time.time() % 1)  # wandb names its files by the second
    record(WandbRecorder(tmp_path, config={"seed": 1}), first=7)
    run_id = (tmp_path / "wandb" / "run_id.txt").read_text()
    losses = [repr(make_row(i)["train/value_loss"]).encode() for i in range(1, 13)]

    def are_kept() -> bool:  # wandb's process may write after the end of the run
        kept = b"".join(path.read_bytes() for path in tmp_path.glob(f"wandb/offline-run-*/run-{run_id}.wandb"))
        return kept.count(b"train/value_loss") >= 12 and all(loss in kept for loss in losses)

    wait_until(are_kept, 30.0)


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
    record(WandbRecorder(tmp_path / "another"))
    ids = [run.settings["id"] for run in runs]
    assert ids[0] == ids[1] != ids[2]
    assert re.fullmatch(r"\w{8}", ids[0])
    assert runs[1].settings["resume"] == "allow"


def test_a_missing_library_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with raises_naming(ImportError, "wandb", "pip install wandb"):
        WandbRecorder(tmp_path).start(make_plan())


def test_unknown_modes_are_refused(tmp_path: Path) -> None:
    with raises_naming(ValueError, "offline, online or disabled", "got 'on'"):
        WandbRecorder(tmp_path, mode="on")


@pytest.mark.parametrize("place", ["wandb", "wandb/run_id.txt"])
def test_nothing_is_written_through_a_link(tmp_path: Path, runs: list[FakeRun], place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, place, "symbolic link"):
        WandbRecorder(tmp_path).start(make_plan())
    assert not (tmp_path / "target").exists()
    assert not runs


def test_an_id_that_is_none_is_refused(tmp_path: Path, runs: list[FakeRun]) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "run_id.txt").write_text("../../elsewhere")
    with raises_naming(RunFolderError, "run_id.txt", "run id"):
        WandbRecorder(tmp_path).start(make_plan())
    assert not runs


def test_a_failed_run_has_failed_at_wandb(tmp_path: Path, runs: list[FakeRun]) -> None:
    recorder = WandbRecorder(tmp_path)
    for fails in (True, False):  # a resumed run can succeed
        recorder.start(make_plan())
        if fails:
            recorder.failure(ValueError("NaN"))
        recorder.close()
    assert [run.exit_code for run in runs] == [1, None]
