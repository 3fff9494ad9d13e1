"""Training in a run folder, without a command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from evorl.recorders import Recorder, RecorderGroup
from evorl.recorders.row_file import RowFile
from evorl.runs.about import read_starts
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Row
from evorl.runs.run_state import FAILED, HeldState, RunState, read_state
from evorl.training.run import _recorder, train
from evorl.training.start import RunPlace, RunStart
from evorl.workflows import Workflow
from tests.support.command_line import SMALL
from tests.support.config_files import spec_of
from tests.support.errors import raises_naming


def test_a_run_is_trained_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = RunStart(RunPlace(tmp_path, "mine"), None, "A title", [], {}, tmp_path, "Settings of mine.")
    trained = train(spec_of("agent=ppo", *SMALL), start)
    folder = RunFolder(tmp_path / "mine")
    assert (trained.folder, trained.stopped) == (folder.path, False)
    assert trained.best_return is not None
    assert folder.load_config().title == "A title"
    assert folder.log.read_text().splitlines()[0].endswith("Settings of mine.")
    assert capsys.readouterr().out.startswith(f"Results are in {folder.path} (")


@pytest.mark.parametrize(
    "words",
    [
        ["serve={token: hushhush, key: my-key.pem}"],
        ["parameters=server", "parameters.token=hushhush", "parameters.key=my-key.pem"],
    ],
    ids=["serve", "parameters"],
)
def test_no_tracker_gets_the_secrets_of_a_server(tmp_path: Path, words: list[str]) -> None:
    trackers = ("recorders.wandb=true", "recorders.mlflow={uri: 'http://127.0.0.1:1'}")
    spec = spec_of("agent=ppo", *trackers, *words)
    assert "hushhush" in repr(spec.as_config())
    group = _recorder(RunFolder(tmp_path), cast(Workflow, SimpleNamespace(keeping=None)), spec)
    assert isinstance(group, RecorderGroup)
    held = {type(recorder).__name__: repr(vars(recorder)) for recorder in group.recorders}
    for tracker in ("WandbRecorder", "MlflowRecorder", "TensorBoardRecorder"):
        assert "clip_epsilon" in held[tracker]
    assert not [name for name, text in held.items() if "hushhush" in text or "my-key.pem" in text]
    group.close()


def record_nothing(folder: Path) -> dict[str, Path]:
    """Return a dict instead of a recorder."""
    return {"folder": folder}


def test_a_function_that_returns_no_recorder_is_named(tmp_path: Path) -> None:
    spec = spec_of("agent=ppo", f"recorders.own=[{__name__}:record_nothing]")
    with raises_naming(ValueError, f"{__name__}:record_nothing", "Recorder", "got dict"):
        _recorder(RunFolder(tmp_path), cast(Workflow, SimpleNamespace(keeping=None)), spec)


class FailsToWrite(Recorder):
    """A user's recorder with a fault in ``write``."""

    def __init__(self, folder: Path) -> None:
        del folder

    def write(self, row: Row) -> None:
        if row["iterations"]:  # not the evaluation before the training
            raise RuntimeError(f"no row {row['iterations']}")


class FailsToStart(Recorder):
    """A user's recorder with a fault in its constructor."""

    def __init__(self, folder: Path) -> None:
        raise RuntimeError(f"no recorder in {folder}")


def _failed_run(tmp_path: Path, recorder: type[Recorder]) -> tuple[RunFolder, RunState]:
    start = RunStart(RunPlace(tmp_path, "mine"), None, "A title", [], {}, tmp_path)
    with pytest.raises(RuntimeError, match="no r"):
        train(spec_of("agent=ppo", *SMALL, f"recorders.own=[{__name__}:{recorder.__name__}]"), start)
    folder = RunFolder(tmp_path / "mine")
    return folder, read_state(folder.state, folder.log)


@pytest.mark.parametrize("change", ["eval_at_start=true", "eval_at_start=false", "eval_interval=0"])
def test_a_run_that_was_stopped_before_its_first_iteration_has_one_row_of_the_untrained_policy(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training server that is stopped before its first client connects saves a checkpoint of iteration 0."""
    monkeypatch.setattr("evorl.execution.training_loop.iterate", lambda _, state, *__: (None, state))
    spec = spec_of("agent=ppo", *SMALL, "eval_at_start=true")
    start = RunStart(RunPlace(tmp_path, "mine", should_stop=lambda: True), None, "A title", [], {}, tmp_path)
    folder = RunFolder(tmp_path / "mine")
    for _ in range(2):
        assert train(spec, start).stopped
        assert RunCheckpointer(folder.checkpoints).steps == (0,)
        assert [row["timesteps"] for row in RowFile(folder.metrics_csv).metrics()] == [0]
        assert len(folder.metrics_jsonl.read_text().splitlines()) == 1
        spec, start = spec_of("agent=ppo", *SMALL, "eval_at_start=true", change), replace(start, resumed=folder)


def test_an_error_in_a_recorder_is_raised_after_a_checkpoint(tmp_path: Path) -> None:
    """The steps since the last checkpoint were lost, although the state of the training was sound."""
    folder, state = _failed_run(tmp_path, FailsToWrite)
    assert (state.state, state.failure) == (FAILED, "RuntimeError: no row 1")
    assert RunCheckpointer(folder.checkpoints).steps == (1,)
    assert len(folder.metrics_csv.read_text().splitlines()) == 3, "the other recorders get the row"


def test_a_recorder_that_cannot_be_created_leaves_the_state_of_the_run(tmp_path: Path) -> None:
    """The folder had a config but no ``state.json``."""
    folder, state = _failed_run(tmp_path, FailsToStart)
    assert (state.state, state.failure) == (FAILED, f"RuntimeError: no recorder in {folder.path}")
    assert len(read_starts(folder.about)) == 1, "it has a command, by which it can be repeated"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "evorl.training.run.weak_spots"),
        (["parameters=server"], "evorl.parameter_server.service.ParameterService.serve"),
    ],
    ids=["training", "parameters"],
)
def test_a_run_that_cannot_begin_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], fault: str
) -> None:
    """It was listed as stopped, without a reason: for example a parameter server whose port is in use."""

    def fail(*_: object) -> None:
        raise OSError("the port is in use")

    monkeypatch.setattr(fault, fail)
    start = RunStart(RunPlace(tmp_path, "mine"), None, "A title", [], {}, tmp_path)
    with raises_naming(OSError, "port is in use"):
        train(replace(spec_of("agent=a2c", "env=cartpole", *words), devices=1), start)
    folder = RunFolder(tmp_path / "mine")
    assert read_state(folder.state, folder.log) == RunState(FAILED, None, "OSError: the port is in use")


@pytest.mark.parametrize("fault", ["recorder", "folder", "restore"])
def test_an_error_before_the_training_closes_the_workflow(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep continues after such an error, so simulators and servers of the run must not stay open."""
    closed: list[Workflow] = []
    monkeypatch.setattr(Workflow, "close", lambda workflow: closed.append(workflow))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    resumed = None
    if fault == "folder":
        RunFolder.create(tmp_path, {}, "mine")
    if fault == "restore":
        resumed = RunFolder.create(tmp_path, {}, "mine")  # without a checkpoint
    start = RunStart(RunPlace(tmp_path, "mine"), resumed, "A title", [], {}, tmp_path)
    with pytest.raises((ValueError, OSError)):
        train(spec_of("agent=ppo", *SMALL, f"recorders.mlflow={str(fault == 'recorder').lower()}"), start)
    assert len(closed) == 1


@pytest.mark.parametrize("kind", ["training", "parameters"])
def test_a_run_that_another_process_resumed_first_is_unchanged(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may both find the run free; the second one must not store its changes, nor read a checkpoint.

    The first one may save another checkpoint and end before the second one starts.
    """
    words = ["agent=a2c", "parameters=server", "env=cartpole"] if kind == "parameters" else ["agent=ppo", *SMALL]
    start, spec = RunStart(RunPlace(tmp_path, "mine"), None, "A title", [], {}, tmp_path), spec_of(*words)
    if kind == "training":
        train(spec, start)
    else:
        start.folder(spec)
    folder = RunFolder(tmp_path / "mine")
    again = replace(start, resumed=folder, title="Another title")
    monkeypatch.setattr("evorl.training.run.restore", lambda *_: pytest.fail("a checkpoint was read before the lock"))
    with HeldState(folder.state):
        before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
        with raises_naming(RunFolderError, folder.path, "already being trained"):
            train(spec, again)
        assert {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


def test_a_job_ends_where_its_sweep_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stopped job of a sweep prints no resume command, which is the sweep's."""
    place = RunPlace(tmp_path, "0", "evorl train resume=sweep", lambda: True)
    start = RunStart(place, None, "A title", [], {}, tmp_path)
    assert train(spec_of("agent=ppo", *SMALL), start).stopped
    assert "To resume" not in capsys.readouterr().out
