"""Pictures of the best policy while the training goes on, drawn by processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evorl.ops.processes import without_working_directory
from evorl.recorders.episode_recorder import forget_later_files
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import make_folder, open_to_write, writing_to
from evorl.runs.folder import RunFolder
from evorl.runs.recording import Recorder, Row, RunPlan

# What a process begins with: it gives way to the training, is none of its processes, and then it is the command line.
_BESIDE_THE_TRAINING = """
import os
from evorl.cli.commands import main
from evorl.execution.multiprocess import PLACE_VARIABLE
os.environ.pop(PLACE_VARIABLE, None)
if hasattr(os, "nice"):
    os.nice(10)
main()
"""


class VideoRecorder(Recorder):
    """Starts ``evorl render`` on the run whenever so many steps are done, one at a time; it waits for none.

    A process draws the best checkpoint that it finds, and names the picture by the steps of that one; where the best
    is still the one that was drawn last, none is started. It computes on the CPU: the training has the accelerator. It
    trusts the config as far as this process does, whose gate it inherits (``evorl.config.gate``).

    Args:
        folder: of the run, whose folder ``videos`` gets the pictures.
        interval: environment steps between two pictures.
        command: instead of Python's interpreter with the command line.

    Attributes:
        process: the last one that was started; ``None`` before.

    Raises:
        ValueError: the interval is not positive.
    """

    def __init__(self, folder: RunFolder, interval: float, command: Sequence[str] | None = None) -> None:
        if interval <= 0:
            raise ValueError(f"the interval between pictures must be positive, got {interval}.")
        self._folder, self._interval = folder, interval
        self._command = tuple(command or (sys.executable, *without_working_directory(), "-c", _BESIDE_THE_TRAINING))
        self._intervals = 0  # that are over
        self._checkpoints, self._shown = RunCheckpointer(folder.checkpoints), None
        self.process: subprocess.Popen | None = None

    @property
    def log(self) -> Path:
        """What the processes say."""
        return self._folder.videos / "render.log"

    def start(self, plan: RunPlan) -> None:
        self._intervals = int(plan.first_timesteps // self._interval)
        forget_later_files(self._folder.videos, plan.first_timesteps)

    def write(self, row: Row) -> None:
        intervals = int(row["timesteps"] // self._interval)
        is_drawing = self.process is not None and self.process.poll() is None
        if intervals <= self._intervals or is_drawing:
            return
        best = self._checkpoints.best_step or max(self._checkpoints.steps, default=None)
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
