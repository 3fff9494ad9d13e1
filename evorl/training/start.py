"""Start of a run: its folder, its title and the command that resumes it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evorl.config.command_lines import as_arguments, is_address
from evorl.execution.multiprocess import train_command
from evorl.execution.plan import describe_devices
from evorl.ops.processes import is_first
from evorl.runs.about import add_start, describe_start
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.trust import confirmation, foreign_names


class RunPlace(NamedTuple):
    """Location of a run, which may belong to a sweep.

    Attributes:
        root: parent folder of the run, such as the folder of its sweep.
        name: name of the run's folder; ``None`` names it by the current time.
        resume_command: command line that resumes the sweep; ``None`` for a separate run.
        should_stop: returns True once a stop of the sweep is requested, for instance during compilation.
        judge: called after each evaluation with the environment steps and the score; returns the reason to finish the
            run early, or ``None`` to continue.
    """

    root: Path
    name: str | None
    resume_command: str | None = None
    should_stop: Callable[[], bool] = lambda: False
    judge: Callable[[int, float], str | None] = lambda *_: None


class Trained(NamedTuple):
    """Result of a training run.

    Attributes:
        best_return: best evaluation return; ``None`` without evaluations.
        stopped: True if a signal or a caller stopped the training; False after an early stop by the setting ``stop``.
        folder: folder of the run, sweep or search; ``None`` without results.
        failures: one sentence for each failed run of a sweep or search.
    """

    best_return: float | None
    stopped: bool
    folder: Path | None = None
    failures: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RunStart:
    """Start of a run: its folder, title and command line, in addition to its settings.

    Attributes:
        place: location of a new run; in a sweep, also the resume command and the stop request of the sweep.
        resumed: folder of the run to continue; ``None`` for a new run.
        title: title of the run.
        overrides: overrides of the command line, recorded in ``about.json``.
        names: chosen agent and environment by config group, recorded in ``about.json``; empty for a resumed run. A new
            trial of a resumed search also has the entry ``command`` of the search.
        source: folder of the source tree; its git commit is recorded.
        notice: first message of a new run; ``None`` for no message.
        suggests_changes: if true, a new run starts with a message that suggests settings to change first.
        began: start of the run in seconds, by ``time.perf_counter``.
    """

    place: RunPlace
    resumed: RunFolder | None
    title: str
    overrides: Sequence[str]
    names: Mapping[str, str]
    source: Path
    notice: str | None = None
    suggests_changes: bool = False
    began: float = dataclasses.field(default_factory=time.perf_counter)

    def folder(self, spec: RunSpec) -> RunFolder:
        """Return the resumed run's folder, or a new one with ``about.json``; raise ``RunFolderError`` on failure."""
        return self.resumed or self._started(RunFolder.create(self.place.root, spec.as_config(), self.place.name), spec)

    def record_resume(self, spec: RunSpec) -> None:
        """Store the changed config and the start of a resumed run, which no other process may train."""
        if self.resumed:
            self.resumed.update_config(spec.as_config())  # a later resume uses the changed config
            self._started(self.resumed, spec)

    def _started(self, folder: RunFolder, spec: RunSpec) -> RunFolder:
        if is_first():
            start = describe_start(train_command(), self.overrides, describe_devices(spec.devices), self.source)
            add_start(folder.about, {**start, **self.names})
        return folder

    def resume_command(self, folder: RunFolder, spec: RunSpec) -> str:
        """Return the command that resumes this run, or the sweep that it belongs to."""
        return self.place.resume_command or resume_command(folder, spec)


def resume_command(folder: RunFolder, spec: RunSpec) -> str:
    """Return the command that resumes a run; it confirms code from outside evorl and downloads that the run uses."""
    downloads = is_address(spec.init_from.run or "")
    allowed = {"trust": "true"} if downloads else confirmation(foreign_names(spec.as_config()))
    return f"{train_command()} {as_arguments({'resume': str(folder.path)} | allowed)}"
