"""Recorder of ``metrics.jsonl``: every value of every row, timings included."""

from __future__ import annotations

import json
from pathlib import Path

from evorl.recorders.row_file import RowFile, as_number
from evorl.runs.recorder import Recorder, Row, RunPlan


class JsonlRecorder(Recorder):
    """Writes one JSON object per row.

    Non-finite values are written as ``NaN`` and ``Infinity``, which Python's ``json`` reads.

    Raises:
        RunFolderError: the disk is full or read-only, or the existing file is corrupted.
        TypeError: a value is not a number.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = RowFile(path)

    def resume_at(self, iterations: int) -> None:
        lines = self._file.lines()
        earlier = [line for i, line in enumerate(lines, start=1) if self._iteration(i, line) <= iterations]
        if len(earlier) < len(lines):
            self._file.replace(earlier)

    def start(self, plan: RunPlan) -> None:
        self._file.open()

    def write(self, row: Row) -> None:
        self._file.append(json.dumps({name: as_number(name, value) for name, value in row.items()}))

    def close(self) -> None:
        self._file.close()

    def _iteration(self, number: int, line: str) -> int:
        try:
            return int(json.loads(line)["iterations"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self._file.damaged(f"line {number} is not a row with an iteration") from error
