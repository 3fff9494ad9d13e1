"""A process that ``evorl run`` starts, in a group of its own: whatever it starts itself ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evorl.apps.prefixed_log import PrefixedLog

_WINDOWS = os.name == "nt"
_LOG_SECONDS = 5.0  # to read what a process that has ended still has to say


class Child:
    """A process with its log.

    Args:
        name: in the log.
        command: words; no shell sees them.
        folder: where it runs.
        variables: of its environment, beside those of this process.
        log: of what it says.

    Raises:
        ValueError: there is no such program.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str], log: PrefixedLog
    ) -> None:
        self.name = name
        # A group of its own: Ctrl-C comes to this process alone, which then ends the others in the right order.
        try:
            self.process = subprocess.Popen(
                list(command),
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=not _WINDOWS,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise ValueError(f"{name} cannot be started by {' '.join(command)}: {error.strerror or error}.") from error
        assert self.process.stdout is not None, "it was asked for"
        self._log = log.follow(name, self.process.stdout)
        self._told_to_end = False

    @property
    def status(self) -> int | None:
        """How it ended; ``None`` while it runs."""
        return self.process.poll()

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error, and not since it was told to end."""
        return not self._told_to_end and self.status not in (None, 0)

    def tell_to_end(self) -> None:
        """Ask it to save and end, if it still runs."""
        if self.status is not None:
            return
        self._told_to_end = True
        if _WINDOWS:
            with contextlib.suppress(OSError):
                self.process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
        else:
            self._signal(signal.SIGTERM)

    def wait(self, until: float) -> bool:
        """Wait until it has ended, or ``time.monotonic()`` is ``until``; whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, until - time.monotonic()))
        return self.status is not None

    def end(self) -> None:
        """End whatever is left of it and of those it started."""
        self._told_to_end = self._told_to_end or self.status is None
        if _WINDOWS:
            if self.status is None:
                subprocess.run(
                    ["taskkill", "/T", "/F", "/PID", str(self.process.pid)], capture_output=True, check=False
                )
        else:
            self._signal(signal.SIGKILL)
        self.process.wait()
        self._log.join(_LOG_SECONDS)
        if not self._log.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()

    def _signal(self, number: int) -> None:
        # The group bears the number of the process, and lives as long as anybody is in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
