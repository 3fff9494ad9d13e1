"""Renders the best policy during training, in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evorl.episodes.recorder import forget_later_files
from evorl.ops.processes import without_working_directory
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import make_folder, open_to_write, writing_to
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder, Row, RunPlan

# Program of a rendering process: it leaves the distributed run, lowers its priority and runs the command line.
_RENDER_SCRIPT = """
import os
from evorl.cli.commands import main
from evorl.execution.multiprocess import PROCESS_VARIABLE
os.environ.pop(PROCESS_VARIABLE, None)
if hasattr(os, "nice"):
    os.nice(10)
main()
"""


class VideoRecorder(Recorder):
    """Starts ``evorl render`` on the run every ``interval`` steps, one process at a time, without waiting for it.

    A process renders the best checkpoint (the latest if none has a score); the file name contains the checkpoint's
    steps. No process starts if that checkpoint has been rendered already. The process computes on the CPU, because
    training uses the accelerator, and trusts the config (``trust=true``), because training has already loaded it.

    Args:
        folder: the run folder; files are written to its folder ``videos``.
        interval: environment steps between two renderings.
        command: command that is started instead of ``evorl``, with the arguments of ``evorl render``.

    Attributes:
        process: the last process started; ``None`` before the first.

    Raises:
        ValueError: the interval is not positive.
    """

    def __init__(self, folder: RunFolder, interval: float, command: Sequence[str] | None = None) -> None:
        if interval <= 0:
            raise ValueError(f"the steps between renderings (render_interval) must be positive, got {interval}.")
        self._folder, self._interval = folder, interval
        self._command = tuple(command or (sys.executable, *without_working_directory(), "-c", _RENDER_SCRIPT))
        self._intervals = 0  # number of completed intervals
        self._checkpoints, self._shown = RunCheckpointer(folder.checkpoints), None
        self.process: subprocess.Popen | None = None

    @property
    def log(self) -> Path:
        """Path of the file with the output of the rendering processes."""
        return self._folder.videos / "render.log"

    def start(self, plan: RunPlan) -> None:
        self._intervals = int(plan.first_timesteps // self._interval)
        forget_later_files(self._folder.videos, plan.first_timesteps)

    def write(self, row: Row) -> None:
        intervals = int(row["timesteps"] // self._interval)
        is_drawing = self.process is not None and self.process.poll() is None
        if intervals <= self._intervals or is_drawing:
            return
        best = self._checkpoints.best_step
        best = max(self._checkpoints.steps, default=None) if best is None else best
        if best is None or best == self._shown:
            return
        self._intervals, self._shown = intervals, best
        self._begin()

    def _begin(self) -> None:
        videos = self._folder.videos
        with writing_to(videos):
            make_folder(videos)
            with open_to_write(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    [*self._command, "render", f"run={self._folder.path}", "trust=true"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "JAX_PLATFORMS": "cpu"},
                )
