"""Child processes of ``evorl run``, each in its own process group so that its descendants end with it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evorl.apps.prefixed_log import PrefixedLog

_WINDOWS = os.name == "nt"
_LOG_SECONDS = 5.0  # timeout for reading the remaining output of a process that has ended


class Child:
    """A child process whose output is printed to a log.

    Args:
        name: name in the log.
        command: argument list, run without a shell.
        folder: working directory.
        variables: environment variables, added to the inherited ones.
        log: destination of stdout and stderr.

    Raises:
        ValueError: the program cannot be started.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, variables: Mapping[str, str], log: PrefixedLog
    ) -> None:
        self.name = name
        # With a separate process group, Ctrl-C reaches only this process, which then ends its children in order.
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
            raise ValueError(
                f"{name} cannot be started with {' '.join(command)}: {error.strerror or error}."
            ) from error
        assert isinstance(self.process.stdout, io.TextIOWrapper), "stdout is a pipe of text"
        self.process.stdout.reconfigure(newline="\n")  # a carriage return does not end a line
        self._log = log.follow(name, self.process.stdout)
        self._end_requested = False

    @property
    def status(self) -> int | None:
        """Exit status; ``None`` while the process runs."""
        return self.process.poll()

    @property
    def failed(self) -> bool:
        """True if the process ended with an error before ``request_end`` or ``end`` stopped it."""
        return not self._end_requested and self.status not in (None, 0)

    def request_end(self) -> None:
        """Send the process and its descendants a signal to save and exit, if the process still runs."""
        if self.status is not None:
            return
        self._end_requested = True
        if _WINDOWS:
            with contextlib.suppress(OSError):
                self.process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
        else:
            self._signal(signal.SIGTERM)

    def wait(self, until: float) -> bool:
        """Wait until the process ends or ``time.monotonic()`` reaches ``until``; return True if it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, until - time.monotonic()))
        return self.status is not None

    def end(self) -> None:
        """Kill the process and its descendants if they still run, and wait for its remaining output."""
        self._end_requested = self._end_requested or self.status is None
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
        # The group has the id of the process, and exists as long as it has members.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
