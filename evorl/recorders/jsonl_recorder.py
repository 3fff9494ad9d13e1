"""``metrics.jsonl``: every value of every row, timings too."""

from __future__ import annotations

import json
from pathlib import Path

from evorl.recorders.recorder import BaseRecorder, Plan, Row
from evorl.recorders.row_file import RowFile, as_number


class JsonlRecorder(BaseRecorder):
    """One JSON object per row.

    What is not finite is written as ``NaN`` and ``Infinity``, which Python's ``json`` reads.

    Raises:
        RunFolderError: the disk is full or read-only.
        TypeError: a value is no number.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = RowFile(path)

    def resume_at(self, iterations: int) -> None:
        lines = self._file.lines()
        kept = [line for line in lines if json.loads(line).get("iterations", 0) <= iterations]
        if len(kept) < len(lines):
            self._file.replace(kept)

    def start(self, plan: Plan) -> None:
        self._file.open()

    def write(self, row: Row) -> None:
        self._file.append(json.dumps({name: as_number(name, value) for name, value in row.items()}))

    def close(self) -> None:
        self._file.close()
