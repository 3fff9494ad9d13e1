"""Reads and writes ``state.json``: the status of a run, or how it ended.

A training process holds a lock on the file (``flock``), which the system releases when the process ends for any reason.
A file with the state "running" but without a lock belongs to a run that was killed. Process ids are not compared,
because the system reuses them. On file systems without such locks, the state in the file is used unchecked.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any

from evorl.runs.files import RunFolderError, make_folder, open_to_write, refuse_link, writing_to

RUNNING, STOPPED, FINISHED, FAILED = STATES = ("running", "stopped", "finished", "failed")
# Parts of the last message in a log, from which ``_end_of_log`` derives the final state of training.
RESULTS_IN, RECORDED_IN, _RESUMING = "Results are in ", "Recorded data is in ", "To resume from the checkpoint, add "
RESUME_WITH_CHANGE = f"{_RESUMING}changed settings, if any, to: "
_TRIES = 20  # attempts to lock, 10 ms apart; a reader holds the lock for less
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_TAIL = 1 << 16  # bytes at the end of a log that are searched


@dataclasses.dataclass(frozen=True)
class RunState:
    """Status of a run.

    Attributes:
        state: ``"running"``, ``"stopped"`` (by a signal, or killed), ``"finished"`` or ``"failed"``.
        total_timesteps: environment steps of the whole run, per seed; ``None`` if unknown.
        failure: first line of the error that ended a failed run; otherwise ``None``.
    """

    state: str
    total_timesteps: int | None = None
    failure: str | None = None


class HeldState:
    """The state file ``path`` of a run, locked during training; in a ``with`` statement, it is locked until the end."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        self.hold()

    def __exit__(self, *error: object) -> None:
        self.release()

    def hold(self) -> None:
        """Acquire the lock, unless held; raise ``RunFolderError`` if another process holds it, or on failure."""
        if self._file is not None:
            return
        with writing_to(self.path.parent):
            make_folder(self.path.parent)
            file = open_to_write(self.path, "a")
            if not any(_locked(file, fcntl.LOCK_EX) or time.sleep(0.01) for _ in range(_TRIES)):
                file.close()
                raise _error_in_training(self.path)
            self._file = file

    def write(self, state: RunState) -> None:
        """Acquire the lock, see ``hold``, and replace the stored state. The file is empty for a moment."""
        self.hold()
        assert self._file is not None, "hold() opens the file"
        with writing_to(self.path.parent):
            self._file.truncate(0)
            rest = (json.dumps(dataclasses.asdict(state)) + "\n").encode()
            while rest:  # not buffered; the system may write only a part
                rest = rest[os.write(self._file.fileno(), rest) :]

    def release(self) -> None:
        """Release the lock; the content of the file stays."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_state(path: Path | str, log: Path | str) -> RunState:
    """Return the status of a run from its state file or, if that is missing or invalid, from its lock and its log.

    Args:
        path: path of ``state.json``; empty in the folders of sweeps and searches, which only hold its lock.
        log: path of ``run.log``, which cannot show that a run is in progress: without a lock, it counts as stopped.

    Raises:
        RunFolderError: one of the paths is a symbolic link.
    """
    for file in (Path(path), Path(log)):
        refuse_link(file)
    try:
        stored: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        total, failure = stored.get("total_timesteps"), stored.get("failure")
        known = STATES[STATES.index(stored["state"])]  # raises ValueError for others
        state = RunState(known, None if total is None else int(total), failure and str(failure))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return RunState(RUNNING if is_held(path, instead=False) else _end_of_log(Path(log)))
    if state.state == RUNNING and not is_held(path):
        return dataclasses.replace(state, state=STOPPED)
    return state


def refuse_running(path: Path | str) -> None:
    """Raise ``RunFolderError`` if a process holds the lock of the state file ``path``, or it is a link."""
    path = Path(path)
    refuse_link(path)
    if path.exists() and is_held(path, instead=False):
        raise _error_in_training(path)


def _error_in_training(path: Path) -> RunFolderError:
    return RunFolderError(f"{path.parent} is already being trained: stop that process, or wait until it ends.")


def is_held(path: Path | str, instead: bool = True) -> bool:
    """Return True if a process holds the lock of the state file; ``instead`` if that cannot be determined."""
    try:
        with open(path, "rb") as file:
            return not _locked(file, fcntl.LOCK_SH, instead=not instead)
    except OSError:
        return instead


def _locked(file: IO[Any], kind: int, instead: bool = True) -> bool:
    """Try to lock a file; return False if another lock prevents it, ``instead`` if the file system has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        return instead if error.errno not in _HELD else False
    return True


def _end_of_log(log: Path) -> str:
    """Return the final state of the last training process in a log; ``stopped`` if the log does not show any."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return STOPPED
    starts = [i for i, line in enumerate(lines) if "Workflow: " in line and " environment steps" in line]
    last = "\n".join(lines[starts[-1] if starts else 0 :])
    if "Stopping early at " in last:
        return STOPPED
    if RESULTS_IN in last:
        return FINISHED
    return FAILED if RECORDED_IN in last or _RESUMING in last else STOPPED
