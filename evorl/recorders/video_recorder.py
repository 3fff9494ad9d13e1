"""Pictures of the best policy while the training goes on, drawn by processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evorl.recorders.episode_recorder import forget_later_files
from evorl.runs.files import make_folder, open_to_write, writing_to
from evorl.runs.folder import RunFolder
from evorl.runs.recording import Recorder, Row, RunPlan

# What a process begins with: it gives way to the training, and then it is the command line.
_WITH_LESS_PRIORITY = (
    "import os; os.nice(10) if hasattr(os, 'nice') else None; from evorl.cli.commands import main; main()"
)


class VideoRecorder(Recorder):
    """Starts ``evorl render`` on the run whenever so many steps are done, one at a time; it waits for none.

    A process draws the best checkpoint that there is when it starts. It computes on the CPU: the training has the
    accelerator. The run's own code is trusted, since this process executes it too.

    Args:
        folder: of the run, whose folder ``videos`` gets ``<steps>.webp``.
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
        self._command = tuple(command or (sys.executable, "-c", _WITH_LESS_PRIORITY))
        self._drawn = 0  # intervals that are over, of which the last has its picture
        self.process: subprocess.Popen | None = None

    @property
    def log(self) -> Path:
        """What the processes say."""
        return self._folder.videos / "render.log"

    def start(self, plan: RunPlan) -> None:
        self._drawn = int(plan.first_timesteps // self._interval)
        forget_later_files(self._folder.videos, plan.first_timesteps)

    def write(self, row: Row) -> None:
        timesteps = int(row["timesteps"])
        is_drawing = self.process is not None and self.process.poll() is None
        if timesteps // self._interval <= self._drawn or is_drawing or self._folder.saved_at is None:
            return
        self._drawn = int(timesteps // self._interval)
        self._begin(timesteps)

    def _begin(self, timesteps: int) -> None:
        folder = self._folder
        options = {"run": folder.path, "to": folder.videos / f"{timesteps:012d}.webp", "trust": "true"}
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        with writing_to(folder.videos):
            make_folder(folder.videos)
            with open_to_write(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    [*self._command, "render", *(f"{name}={value}" for name, value in options.items())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
