"""Shared log of several processes: each line is prefixed with the time and the process name."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from evorl.recorders.screen import print_line

_COLORS = (36, 33, 35, 32, 34, 31)  # ANSI colors of the process names, assigned cyclically
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PrefixedLog:
    """Prints the output of several processes without interleaving their lines.

    Args:
        stream: output stream; colored only if it is a terminal.
        clock: returns the seconds since the epoch.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._clock = stream, clock
        self._lock = threading.Lock()
        self._names: list[str] = []

    def say(self, name: str, line: str) -> None:
        """Print one line of a process: ``22:03:11.120 environment-0 | text``."""
        with self._lock:
            if name not in self._names:
                self._names.append(name)
            at, width = self._clock(), max(map(len, self._names))
            head = f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1000):03d} {name:{width}s} |"
            if self._stream.isatty():
                head = f"\x1b[{_COLORS[self._names.index(name) % len(_COLORS)]}m{head}\x1b[0m"
            print_line(f"{head} {line}".rstrip(), self._stream, colors=self._stream.isatty())

    def follow(self, name: str, lines: Iterable[str]) -> threading.Thread:
        """Start a thread that prints the lines of process ``name`` until they end, and return the thread."""

        def read() -> None:
            for line in lines:
                # If carriage returns overwrite a line, only its last version is printed.
                text = line.rstrip("\r\n").rpartition("\r")[2]
                self.say(name, text if self._stream.isatty() else _CONTROL.sub("", text))

        thread = threading.Thread(target=read, name=f"log of {name}", daemon=True)
        thread.start()
        return thread
