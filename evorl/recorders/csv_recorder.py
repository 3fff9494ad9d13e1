"""``metrics.csv``: everything that depends on the seed and the config only, so that equal runs give equal files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from evorl.recorders.recorder import BaseRecorder, Plan, Row
from evorl.recorders.row_file import RowFile, as_number

TIMED = "time/"


class CsvRecorder(BaseRecorder):
    """One line per row, one column per metric; what is timed (``time/*``) is left out.

    Columns stand in the order of their first appearance. One that appears later is added to the header, and earlier
    rows are empty there. Floats are written so that reading them gives the same bits.

    Raises:
        RunFolderError: the disk is full or read-only.
        TypeError: a value is no number.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = RowFile(path)
        self._columns: list[str] | None = None

    def resume_at(self, iterations: int) -> None:
        header, rows = _parse(self._file.lines())
        if "iterations" not in header:
            return
        place = header.index("iterations")
        rows = [row for row in rows if len(row) == len(header) and int(row[place]) <= iterations]
        # A column that only forgotten rows had is forgotten too: it comes back where it came first.
        filled = [i for i in range(len(header)) if any(row[i] for row in rows)]
        kept = [[row[i] for i in filled] for row in rows]
        self._file.replace([_line([header[i] for i in filled]), *map(_line, kept)] if rows else [])
        self._columns = None

    def start(self, plan: Plan) -> None:
        self._file.open()

    def write(self, row: Row) -> None:
        values = {name: repr(as_number(name, value)) for name, value in row.items() if not name.startswith(TIMED)}
        if self._columns is None:
            self._columns = _parse(self._file.lines())[0]
        new = [name for name in values if name not in self._columns]
        if new:
            self._add_columns(new)
        self._file.append(_line(values.get(name, "") for name in self._columns))

    def close(self) -> None:
        self._file.close()

    def _add_columns(self, new: list[str]) -> None:
        assert self._columns is not None, "write() has read the columns"
        rows = self._file.lines()[1:]
        self._columns = [*self._columns, *new]
        self._file.replace([_line(self._columns), *(row + "," * len(new) for row in rows)])


def _parse(lines: list[str]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a file's lines."""
    table = list(csv.reader(lines))
    return (table[0], table[1:]) if table else ([], [])


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
