"""Recorder of ``metrics.csv``: all values that depend only on seed and config, so that equal runs give equal files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from evorl.recorders.row_file import RowFile, as_number
from evorl.runs.recorder import Recorder, Row, RunPlan

TIMED = "time/"


class CsvRecorder(Recorder):
    """Writes one line per row and one column per metric, except timings (``time/*``).

    Columns are in the order of their first appearance. A later column is added to the header, and is empty in earlier
    rows. Floats are written so that reading them gives the same bits.

    Raises:
        RunFolderError: the disk is full or read-only, or the existing file is corrupted.
        TypeError: a value is not a number.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = RowFile(path)
        self._columns: list[str] | None = None

    def resume_at(self, iterations: int) -> None:
        header, rows = self._table()
        if not header:
            return
        rows = [row for at, row in zip(self._iterations(header, rows), rows, strict=True) if at <= iterations]
        # Columns used only by removed rows are removed too; they are added again when they first appear.
        filled = [i for i in range(len(header)) if any(row[i] for row in rows)]
        table = [[row[i] for i in filled] for row in (header, *rows)]
        self._file.replace(map(as_line, table) if rows else [])
        self._columns = None

    def start(self, plan: RunPlan) -> None:
        self._file.open()

    def write(self, row: Row) -> None:
        values = {name: repr(as_number(name, value)) for name, value in row.items() if not name.startswith(TIMED)}
        if self._columns is None:
            self._columns = self._table()[0]
        new = [name for name in values if name not in self._columns]
        if new:
            self._add_columns(new)
        self._file.append(as_line(values.get(name, "") for name in self._columns))

    def close(self) -> None:
        self._file.close()

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows; both empty for an empty file."""
        try:
            table = list(csv.reader(self._file.lines(), strict=True))
        except csv.Error as error:
            raise self._file.damaged(str(error)) from error
        return (table[0], table[1:]) if table else ([], [])

    def _iterations(self, header: list[str], rows: list[list[str]]) -> list[int]:
        """Return the iteration of each row, and check that every row has a cell for each column."""
        if "iterations" not in header:
            raise self._file.damaged("it has no column 'iterations'")
        column, iterations = header.index("iterations"), []
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header) or not row[column].isdecimal() or not all(map(_is_number_or_empty, row)):
                raise self._file.damaged(f"line {number} is not a row of {len(header)} numbers")
            iterations.append(int(row[column]))
        return iterations

    def _add_columns(self, new: list[str]) -> None:
        assert self._columns is not None, "write() has read the columns"
        rows = self._file.lines()[1:]
        self._columns = [*self._columns, *new]
        self._file.replace([as_line(self._columns), *(row + "," * len(new) for row in rows)])


def _is_number_or_empty(text: str) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def as_line(cells: Iterable[str]) -> str:
    """Format cells as a line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
