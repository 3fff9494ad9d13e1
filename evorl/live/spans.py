"""Profiles of several processes: each writes its spans to a file, and all files are merged for ``chrome://tracing``.

A span is the duration of an operation on the host, such as an update of the parameters. Compiled programs are not
traced; use ``jax.profiler`` for them. Source of the format: Trace Event Format, events "X".
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from evorl.recorders.row_file import RowFile
from evorl.runs.files import make_folder, write_atomically, writing_to

MERGED = "trace.json"
_KEPT_BACK = 256  # number of buffered events that triggers a write
_PIECES = "spans-*.jsonl"
P = ParamSpec("P")
R = TypeVar("R")


class Spans:
    """Thread-safe recorder of the spans of this process.

    Args:
        folder: folder of the profile, shared by all processes and created with the first write; ``None`` disables
            profiling.
        process: display name of this process, such as ``"parameter server"``; empty for ``process <process ID>``.
    """

    def __init__(self, folder: Path | str | None, process: str = "") -> None:
        self._process = process or f"process {os.getpid()}"
        self._file = None if folder is None else RowFile(Path(folder) / f"spans-{os.getpid()}-{time.time_ns()}.jsonl")
        self._waiting: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        # The origin of a monotonic clock is arbitrary: the wall-clock time aligns several processes.
        self._zero = time.time_ns() - time.perf_counter_ns()
        self._named = False

    @property
    def are_on(self) -> bool:
        """Return True if profiling is enabled."""
        return self._file is not None

    @contextlib.contextmanager
    def span(self, name: str, **args: float | int | str) -> Iterator[None]:
        """Measure the duration of a context, even if it fails; ``args`` such as ``steps=64`` annotate the span.

        Raises:
            RunFolderError: the file cannot be written.
        """
        if self._file is None:
            yield
            return
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            took = time.perf_counter_ns() - begin
            self._add({
                "name": name, "cat": "evorl", "ph": "X", "ts": (self._zero + begin) / 1000, "dur": took / 1000,
                "pid": os.getpid(), "tid": threading.get_native_id(), "args": args,
            })  # fmt: skip

    def instrumented(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function so that each call is recorded as a span with the function's name."""
        if self._file is None:
            return function

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.span(function.__name__):
                return function(*args, **kwargs)

        return measured

    def flush(self) -> None:
        """Write all buffered events."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            if self._file is None or not waiting:
                return
            if not self._named:
                name = {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": self._process}}
                waiting.insert(0, name)
                self._named = True
            self._file.append("\n".join(map(json.dumps, waiting)))

    def close(self) -> Path | None:
        """Close the file, and return the result of ``merge_spans``; ``None`` if profiling is disabled."""
        self.flush()
        if self._file is None:
            return None
        self._file.close()
        return merge_spans(self._file.path.parent)

    def _add(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._waiting.append(event)
            is_much = len(self._waiting) >= _KEPT_BACK
        if is_much:
            self.flush()


def merge_spans(folder: Path | str) -> Path:
    """Merge the spans of all processes into one file for ``chrome://tracing`` and ui.perfetto.dev.

    Incomplete lines of killed processes are skipped.

    Returns:
        The path of the file, ``trace.json`` in the folder.

    Raises:
        RunFolderError: a file in the folder cannot be read or written.
    """
    folder = Path(folder)
    events = []
    for path in sorted(folder.glob(_PIECES)):
        for line in RowFile(path).lines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    events.sort(key=lambda event: event.get("ts", 0.0))
    with writing_to(folder):
        make_folder(folder)
        write_atomically(folder / MERGED, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return folder / MERGED
