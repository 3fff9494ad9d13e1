"""``state.json``: whether a run goes on, and how it ended where it has.

While a training runs it holds a lock on the file (``flock``), which the system lets go of when the process ends, in
whatever way. So a file that says "running" and that nobody holds is of a run that was killed. No process number is
compared, which another process may have by now. Where a file system has no such locks, what the file says is believed.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import time
from pathlib import Path
from typing import IO, Any

from evorl.runs.files import RunFolderError, make_folder, open_to_write, refuse_link, writing_to

RUNNING, STOPPED, FINISHED, FAILED = STATES = ("running", "stopped", "finished", "failed")
_TRIES = 20  # a hundredth of a second apart: somebody who looks holds the file for less
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_TAIL = 1 << 16  # bytes of a log in which its end is looked for


@dataclasses.dataclass(frozen=True)
class RunState:
    """Where a run stands.

    Attributes:
        state: ``"running"``, ``"stopped"`` (by a signal, or killed), ``"finished"`` or ``"failed"``.
        total_timesteps: environment steps of the whole run, for each seed; ``None`` where nobody wrote it down.
        failure: the error that ended it, in its first line; ``None`` but for those that failed.
    """

    state: str
    total_timesteps: int | None = None
    failure: str | None = None


class HeldState:
    """The file as a training holds it.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def hold(self) -> None:
        """Take the lock, unless it is held here already.

        Raises:
            RunFolderError: another training holds it; or the file cannot be written.
        """
        if self._file is not None:
            return
        with writing_to(self.path.parent):
            make_folder(self.path.parent)
            file = open_to_write(self.path, "a")
            if not any(_locked(file, fcntl.LOCK_EX) or time.sleep(0.01) for _ in range(_TRIES)):
                file.close()
                raise _in_training(self.path)
            self._file = file

    def write(self, state: RunState) -> None:
        """Put a state in the place of the one that stands there. A kill may leave nothing, which is read as stopped."""
        self.hold()
        assert self._file is not None, "hold() opens the file"
        with writing_to(self.path.parent):
            self._file.truncate(0)
            self._file.write(json.dumps(dataclasses.asdict(state)) + "\n")
            self._file.flush()

    def release(self) -> None:
        """Let go of the file; what it says stays."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_state(path: Path | str, log: Path | str) -> RunState:
    """How a run stands, as it has written down; without that, as far as its log tells, which is not while it runs.

    Args:
        path: of ``state.json``.
        log: of ``run.log``, for runs that have no such file.

    Raises:
        RunFolderError: there is a symbolic link in their place.
    """
    for file in (Path(path), Path(log)):
        refuse_link(file)
    try:
        told: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        total, failure = told.get("total_timesteps"), told.get("failure")
        state = RunState(str(told["state"]), None if total is None else int(total), failure and str(failure))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return RunState(_end_of_log(Path(log)))
    if state.state not in STATES:
        return RunState(_end_of_log(Path(log)))
    if state.state == RUNNING and not is_held(path):
        return dataclasses.replace(state, state=STOPPED)
    return state


def refuse_running(path: Path | str) -> None:
    """Look whether a run is in training before anything of it is changed.

    Raises:
        RunFolderError: it is.
    """
    path = Path(path)
    refuse_link(path)
    if path.exists() and is_held(path, instead=False):
        raise _in_training(path)


def _in_training(path: Path) -> RunFolderError:
    return RunFolderError(f"{path.parent} is in training already: stop that training, or wait for it.")


def is_held(path: Path | str, instead: bool = True) -> bool:
    """Whether a training holds the file; ``instead`` where there is no telling."""
    try:
        with open(path, "rb") as file:
            return not _locked(file, fcntl.LOCK_SH, instead=not instead)
    except OSError:
        return instead


def _locked(file: IO[Any], kind: int, instead: bool = True) -> bool:
    """Whether the lock is ours now; ``instead`` where the file system has none."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        return instead if error.errno not in _HELD else False
    return True


def _end_of_log(log: Path) -> str:
    """How the last training that a log tells of ended."""
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
    if "Results are in " in last:
        return FINISHED
    return FAILED if "What was recorded is in " in last or "To go on from the checkpoint: " in last else STOPPED
