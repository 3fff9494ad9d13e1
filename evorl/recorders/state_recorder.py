"""Recorder of ``state.json``, the status of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path

from evorl.runs.recorder import Recorder, Row, RunPlan
from evorl.runs.run_state import FAILED, FINISHED, RUNNING, STOPPED, HeldState, RunState


class StateRecorder(Recorder):
    """Locks the run, and writes its status, running, finished, stopped (early) or failed, to ``state.json``.

    Raises:
        RunFolderError: the run is already being trained, or the disk is full or read-only.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = HeldState(path)
        self._file.hold()
        self._total: int | None = None
        self._timesteps = 0
        self._is_complete = False
        self._failure: str | None = None

    def start(self, plan: RunPlan) -> None:
        self._total, self._timesteps, self._failure = plan.total_timesteps, plan.first_timesteps, None
        self._is_complete = False
        self._file.write(RunState(RUNNING, self._total))

    def write(self, row: Row) -> None:
        self._timesteps = int(row["timesteps"])

    def complete(self) -> None:
        self._is_complete = True

    def failure(self, error: Exception) -> None:
        self._failure = f"{type(error).__name__}: {error}".splitlines()[0]
        if self._total is None and self._file.path.is_file() and self._file.path.stat().st_size:
            return  # a resumed run that could not start keeps its state
        with contextlib.suppress(OSError):  # the disk may be the cause of the failure
            self._file.write(RunState(FAILED, self._total, self._failure))

    def close(self) -> None:
        try:
            if self._total is not None and self._failure is None:
                is_finished = self._is_complete or self._timesteps >= self._total
                self._file.write(RunState(FINISHED if is_finished else STOPPED, self._total))
        finally:
            self._total = None
            self._file.release()
