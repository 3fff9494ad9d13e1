"""Recorder of ``run.log``: messages and evaluations with timestamps."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from evorl.recorders.run_status import describe_metrics
from evorl.runs.files import make_folder, open_to_write, writing_to
from evorl.runs.recorder import Recorder, Row, RunPlan


class _StrictFileHandler(logging.FileHandler):
    """A file handler that raises its failures instead of printing them, and never writes through a symbolic link."""

    def _open(self) -> Any:
        return open_to_write(self.baseFilename, "a")

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # re-raises: logging calls this method in its except block


class LogRecorder(Recorder):
    """Writes the start of the run, messages and evaluations to ``path``, each with a timestamp. A resumed run appends.

    Raises:
        RunFolderError: the disk is full or read-only, or the file is a symbolic link.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._logger: logging.Logger | None = None
        self._side_by_side: str | None = None

    def start(self, plan: RunPlan) -> None:
        self._side_by_side = plan.side_by_side
        resumed = f", resumed at {plan.first_timesteps:,}" if plan.first_timesteps else ""
        self.message(f"{plan.name}: {plan.total_timesteps:,} environment steps{resumed}.")

    def write(self, row: Row) -> None:
        if any(name.startswith("eval/") for name in row):
            metrics = describe_metrics(row, side_by_side=self._side_by_side)
            self.message(f"{row.get('timesteps', 0):,} steps: {metrics}")

    def message(self, text: str) -> None:
        with writing_to(self.path.parent):
            if self._logger is None:
                self._logger = self._open()
            try:
                self._logger.info(text)
            except OSError:
                with contextlib.suppress(OSError):
                    self.close()  # now, so that a later call does not fail again
                raise

    def close(self) -> None:
        logger, self._logger = self._logger, None
        for handler in logger.handlers if logger else ():
            with writing_to(self.path.parent):
                handler.close()

    def _open(self) -> logging.Logger:
        make_folder(self.path.parent)
        # Outside the hierarchy of named loggers, so that no other logging configuration affects it.
        logger = logging.Logger("evorl.run", logging.INFO)
        handler = _StrictFileHandler(self.path, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%Y-%m-%d %H:%M:%S"))
        logger.addHandler(handler)
        return logger
