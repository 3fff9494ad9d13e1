"""Rescues a run whose folder is moved or removed: training ends, and the last state is saved in a new folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evorl.ops.processes import any_says, decided_by_first, is_first
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec


class FolderMissing(RunFolderError):
    """Raised if the folder of a run was removed or renamed while the run wrote to it."""


class WatchedFolder:
    """A run folder, with a stored config, that may be removed or renamed while a run writes to it.

    The system reports no error when a process writes to an open file in a renamed or removed folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._handle: int | None = None
        with contextlib.suppress(OSError):
            self._handle = os.open(folder.path, os.O_RDONLY)

    @property
    def is_missing(self) -> bool:
        """True if the run folder, or its config, is no longer at its path; always False except in the first process."""
        return is_first() and not self.folder.config.is_file()

    def refuse_missing(self) -> None:
        """Raise ``FolderMissing``, see ``error``, if the folder is missing; all processes must call this method."""
        if any_says(self.is_missing):
            raise self.error()

    def error(self, advice: str = "Start the run again.") -> FolderMissing:
        """Return the error for a folder that was moved or removed, with its new path, if known, and ``advice``."""
        moved = self._moved_to()
        happened = f"was moved to {moved}" if moved else "was removed or moved"
        return FolderMissing(f"{self.folder.path} {happened} while the run wrote to it, which ends the run. {advice}")

    def close(self) -> None:
        """Close the file descriptor of the folder."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _moved_to(self) -> Path | None:
        """Return the current path of the folder; ``None`` if it was removed, or if the system does not report it."""
        if self._handle is None:
            return None
        with contextlib.suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{self._handle}"))
            return path if (path / self.folder.config.name).is_file() else None
        return None


class RescuingCheckpointer(RunCheckpointer):
    """Saves into a new folder if the run folder was moved or removed, and then ends the run.

    Args:
        watched: the run folder.
        spec: settings of the run, stored in the new folder.
        resume_command: function that returns the command to resume the run in a given folder, for the error message.
        *arguments: positional arguments of ``RunCheckpointer`` after ``folder``.
        **options: keyword arguments of ``RunCheckpointer``.
    """

    def __init__(
        self,
        watched: WatchedFolder,
        spec: RunSpec,
        resume_command: Callable[[RunFolder, RunSpec], str],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(watched.folder.checkpoints, *arguments, **options)
        self._watched, self._spec, self._resume_command = watched, spec, resume_command

    def save(self, state: Any, progress: Mapping[str, Any], score: float | None = None) -> None:
        """Save a state, see ``RunCheckpointer.save``; if the run folder is missing, save into a new folder and raise.

        Raises:
            FolderMissing: the run folder was moved or removed; the message names the new folder.
        """
        if not any_says(self._watched.is_missing):
            super().save(state, progress, score)
            return
        rescued = RunFolder(Path(decided_by_first(lambda: str(self._new_folder().path))))
        self.folder = rescued.checkpoints
        super().save(state, progress, score)
        advice = f"Its last state is saved in {rescued.path}. To continue: {self._resume_command(rescued, self._spec)}"
        raise self._watched.error(advice)

    def _new_folder(self) -> RunFolder:
        missing = self._watched.folder.path
        names = (f"{missing.name}_rescued{f'_{number}' if number > 1 else ''}" for number in range(1, 10_000))
        name = next(name for name in names if not (missing.parent / name).exists())
        return RunFolder.create(missing.parent, self._spec.as_config(), name)
