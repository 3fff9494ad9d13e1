"""Where the time of several processes goes: spans, a file a process, and all of them as one for ``chrome://tracing``.

A span is what a call on the host takes, such as a collect, an update or a push; nothing within a compiled program is
seen or changed. What JAX does below is told by ``jax.profiler``. Source of the format: Trace Event Format, events "X".
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
from evorl.runs.files import make_folder, write_text, writing_to

MERGED = "trace.json"
_KEPT_BACK = 256  # events between two writes
_PIECES = "spans-*.jsonl"
P = ParamSpec("P")
R = TypeVar("R")


class Spans:
    """The spans of this process; from any thread.

    Args:
        folder: of all processes of a profile, made when there is something to write; ``None`` to measure nothing.
        process: what this one is called, such as ``"parameter server"``.
    """

    def __init__(self, folder: Path | str | None, process: str = "") -> None:
        self._process = process or f"process {os.getpid()}"
        self._file = None if folder is None else RowFile(Path(folder) / f"spans-{os.getpid()}-{time.time_ns()}.jsonl")
        self._waiting: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        # Clocks that never go back begin anywhere: the time of day puts those of several processes side by side.
        self._zero = time.time_ns() - time.perf_counter_ns()
        self._named = False

    @property
    def are_on(self) -> bool:
        """Whether anything is measured."""
        return self._file is not None

    @contextlib.contextmanager
    def span(self, name: str, **told: float | int | str) -> Iterator[None]:
        """Within: what this takes is measured, also where it ends by an error.

        Args:
            name: of what is done.
            told: shown with it, such as ``steps=64``.

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
                "pid": os.getpid(), "tid": threading.get_native_id(), "args": told,
            })  # fmt: skip

    def instrumented(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function whose calls are spans of its name."""
        if self._file is None:
            return function

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.span(function.__name__):
                return function(*args, **kwargs)

        return measured

    def flush(self) -> None:
        """Write what is kept back."""
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
        """Write all, close the file, and put what all processes have written by now in one, see ``merge_spans``."""
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
    """Put the spans of all processes in one file, which ``chrome://tracing`` and ui.perfetto.dev open.

    Returns:
        The file, ``trace.json`` in the folder; lines that a kill has torn are left out.

    Raises:
        RunFolderError: the folder cannot be written.
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
        write_text(folder / MERGED, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return folder / MERGED
