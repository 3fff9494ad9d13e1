"""If a run folder disappears during training, or a disk fails, the run ends and keeps its state."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evorl.cli import main as cli
from evorl.recorders.log_recorder import LogRecorder
from evorl.recorders.row_file import JsonlRecorder, RowFile
from evorl.runs import checkpointer, run_state
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.rescue import FolderMissing, WatchedFolder
from tests.support.command_line import SMALL
from tests.support.errors import assert_names, raises_naming

GONE: dict[str, Callable[[Path], Any]] = {
    "removed": shutil.rmtree,
    "renamed": lambda path: path.rename(path.with_name("elsewhere")),
    "removed with its parent": lambda path: shutil.rmtree(path.parent),
}


def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a small training; return its exit status and output."""
    monkeypatch.setattr("sys.argv", ["evorl", *SMALL, f"runs_folder={tmp_path / 'runs'}"])
    status = 0
    try:
        cli.train()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize("how", GONE)
def test_a_folder_that_is_gone_ends_the_run_and_the_state_is_kept(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, folders = JsonlRecorder.write, []

    def write_and_lose(self: JsonlRecorder, row: Any) -> None:
        write(self, row)
        if not folders and row["timesteps"] == 64:
            folders.append(RunFolder(next((tmp_path / "runs").rglob("config.yaml")).parent))
            GONE[how](folders[0].path)

    monkeypatch.setattr(JsonlRecorder, "write", write_and_lose)
    status, out, err = train(tmp_path, monkeypatch, capsys)
    (lost,) = folders
    assert status == 1
    assert "Results are in" not in out
    assert f"{lost.path} was {'moved to' if how == 'renamed' else 'removed'}" in err
    assert not lost.config.exists()
    (rescued,) = lost.path.parent.glob("*_rescued")
    assert f"resume={rescued}" in err
    assert RunCheckpointer(RunFolder(rescued).checkpoints).steps == (1,)
    if how == "renamed":
        assert str(lost.path.with_name("elsewhere")) in err
    # The rescued run resumes to its end.
    monkeypatch.setattr("sys.argv", ["evorl", f"resume={rescued}"])
    cli.train()
    assert "Results are in" in capsys.readouterr().out


@pytest.mark.parametrize("how", GONE)
def test_a_folder_that_is_gone_at_the_very_end_is_no_result(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = RunCheckpointer.save

    def save_and_lose(self: RunCheckpointer, state: Any, progress: Any, score: float | None = None) -> None:
        save(self, state, progress, score)
        if progress["timesteps"] == 128:
            GONE[how](self.folder.parent)

    monkeypatch.setattr(RunCheckpointer, "save", save_and_lose)
    status, out, err = train(tmp_path, monkeypatch, capsys)
    assert status == 1
    assert "Results are in" not in out
    assert_names(err, "run wrote to it")


def fails(number: int, text: str) -> Callable[..., Any]:
    """Return a function that raises an ``OSError`` like the system's."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, text)

    return fail


@pytest.mark.parametrize(
    ("number", "text", "message"),
    [
        (errno.ENOSPC, "No space left on device", "no space is left"),
        (errno.EROFS, "Read-only file system", "read-only"),
        (errno.EACCES, "Permission denied", "permission is denied"),
    ],
)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(checkpointer, "write_checkpoint"), (RowFile, "append"), (LogRecorder, "write"), (run_state.HeldState, "write")],
    ids=["checkpoint", "metrics", "log", "state"],
)
def test_a_disk_that_fails_ends_the_run_and_what_was_saved_is_kept(
    owner: Any,
    name: str,
    number: int,
    text: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A disk that becomes full after the first writes ends the run, which keeps its saved state."""
    original, calls = getattr(owner, name), []

    def write(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        failing = len(calls) > (2 if name == "append" else 1)
        return fails(number, text)() if failing else original(*arguments, **options)

    monkeypatch.setattr(owner, name, write)
    status, out, err = train(tmp_path, monkeypatch, capsys)
    assert status == 1
    assert "Results are in" not in out or owner is run_state.HeldState  # the state is written last
    assert err.startswith("Error: ")
    assert message in err or text in err
    assert "Traceback" not in err
    folder = RunFolder(next((tmp_path / "runs").rglob("config.yaml")).parent)
    assert folder.config.is_file()
    if name == "write_checkpoint":
        assert RunCheckpointer(folder.checkpoints).steps == (1,)


def test_a_folder_is_watched_by_its_config(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, {"a": 1}, "run")
    watched = WatchedFolder(folder)
    watched.refuse_missing()
    folder.path.rename(tmp_path / "other")
    assert watched.is_missing
    with raises_naming(FolderMissing, f"moved to {tmp_path / 'other'}", "Start the run again"):
        watched.refuse_missing()
    shutil.rmtree(tmp_path / "other")
    with raises_naming(FolderMissing, "removed"):
        watched.refuse_missing()
    watched.close()
    watched.close()
