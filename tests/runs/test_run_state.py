"""State of a run, from its state file, its lock and its log."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from evorl.runs.files import RunFolderError
from evorl.runs.run_state import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    HeldState,
    RunState,
    is_held,
    read_state,
    refuse_running,
)
from tests.support.errors import raises_naming

HOLDS = """
import sys
from evorl.runs.run_state import RUNNING, HeldState, RunState
HeldState(sys.argv[1]).write(RunState(RUNNING, 100))
held = HeldState(sys.argv[1] + "2"); held.write(RunState(RUNNING, 100))
print("held", flush=True); sys.stdin.read()
"""


def read(path: Path) -> RunState:
    return read_state(path, path.with_name("run.log"))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    file = HeldState(path)
    for state in (RunState(RUNNING, 100), RunState(FAILED, 100, "ValueError: no"), RunState(FINISHED, 100)):
        file.write(state)
        assert read(path) == state
    file.release()
    file.release()
    assert read(path) == RunState(FINISHED, 100)


def test_a_killed_run_is_stopped(tmp_path: Path) -> None:
    """A run counts as stopped once its process is killed, or its lock is garbage collected."""
    path = tmp_path / "state.json"
    other = path.with_name("state.json2")
    child = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert read(path) == RunState(STOPPED, 100)  # the process no longer holds this file
        assert read(other) == RunState(RUNNING, 100)
        with raises_naming(RunFolderError, tmp_path, "being trained", "stop", "wait"):
            refuse_running(other)
        with raises_naming(RunFolderError, tmp_path, "being trained"):
            HeldState(other).hold()
    finally:
        child.kill()
        child.communicate()
    assert json.loads(other.read_text())["state"] == RUNNING
    assert read(other) == RunState(STOPPED, 100)
    refuse_running(other)
    refuse_running(tmp_path / "nowhere")


def test_who_looks_keeps_nobody_from_training(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("{}")
    with path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_held(path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_the_file_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = tmp_path / "state.json"
    file = HeldState(path)
    file.write(RunState(RUNNING, 100))
    file.release()
    assert read(path) == RunState(RUNNING, 100)
    refuse_running(path)


START = "2026-01-01 00:00:00  PPOWorkflow: 1,000 environment steps.\n"


@pytest.mark.parametrize(
    ("log", "state"),
    [
        (START + "x  Results are in runs/a (4 s in all)\n", FINISHED),
        (START + "x  Stopping early at 5 of 9 steps.\nx  Results are in runs/a (4 s in total)\n", STOPPED),
        (START + "x  policy_loss became nan in iteration 3. Recorded data is in runs/a.\n", FAILED),
        (START + "x  10 steps: evaluation return 3\n", STOPPED),
        (START + "x  Results are in runs/a (4 s in total)\n" + START + "x  10 steps\n", STOPPED),
        ("", STOPPED),
        (None, STOPPED),
    ],
)
def test_the_log_tells_of_runs_from_before(tmp_path: Path, log: str | None, state: str) -> None:
    if log is not None:
        (tmp_path / "run.log").write_text(log)
    for text in (None, "", "{", '{"state": "resting"}', "[1]", '{"state": "failed", "total_timesteps": "x"}'):
        if text is not None:
            (tmp_path / "state.json").write_text(text)
        assert read(tmp_path / "state.json") == RunState(state)


@pytest.mark.parametrize("text", ["", "{", '{"state": "resting"}', '{"total_timesteps": 5}'])
def test_a_held_file_without_a_state_is_of_a_run_in_progress(tmp_path: Path, text: str) -> None:
    """Sweeps and searches only hold the lock, and a training holds it before it writes the state."""
    path, log = tmp_path / "state.json", tmp_path / "run.log"
    log.write_text(START + "x  Results are in runs/a (4 s in total)\n")
    with HeldState(path):
        path.write_text(text)
        assert read(path) == RunState(RUNNING)
        with raises_naming(RunFolderError, "being trained"):
            refuse_running(path)
    assert read(path) == RunState(FINISHED)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "state.json").symlink_to(tmp_path / "elsewhere")
    for call in (read, refuse_running, lambda path: HeldState(path).hold()):
        with raises_naming(RunFolderError, "state.json", "symbolic link"):
            call(tmp_path / "state.json")
    assert not (tmp_path / "elsewhere").exists()


def test_a_state_is_written_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write only a part at once, for example if a signal arrives."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:5]))
    held = HeldState(tmp_path / "state.json")
    held.write(RunState(FAILED, 100, "out of memory"))
    held.release()
    assert read(tmp_path / "state.json") == RunState(FAILED, 100, "out of memory")


def test_a_state_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    """Releasing the lock afterwards must not raise the error of the system in its place."""
    held, limits = HeldState(tmp_path / "state.json"), resource.getrlimit(resource.RLIMIT_FSIZE)
    held.hold()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with raises_naming(RunFolderError, f"write to {tmp_path}"):
            held.write(RunState(RUNNING, 100))
        held.release()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
