"""Files with one row of metrics per line: the file itself, and the recorders of CSV and JSON Lines.

If the process is killed, a file lacks at most the last row; a resume replaces a file atomically.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from evorl.runs.files import RunFolderError, make_folder, open_to_write, refuse_link, replacing, writing_to
from evorl.runs.recorder import Recorder, Row, RunPlan

TIMED = "time/"


class RowFile:
    """Appends lines; each is flushed to the operating system when written.

    If the process is killed, only the last line can be incomplete; it is dropped when the file is opened again.

    Raises:
        RunFolderError: the file cannot be read or written, is not UTF-8, or is a symbolic link.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def lines(self) -> list[str]:
        """Return the complete lines, without line ends; an empty list if the file does not exist."""
        refuse_link(self.path)
        if not self.path.exists():
            return []
        try:
            with open(self.path, encoding="utf-8", newline="\n") as file:
                return file.read().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise self.damaged(f"{error.reason} at byte {error.start:,}") from error
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be read: {error.strerror}.") from error

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of a CSV file, empty if it is missing; raise ``RunFolderError`` if it is invalid."""
        try:
            table = list(csv.reader(self.lines(), strict=True))
        except csv.Error as error:
            raise self.damaged(str(error)) from error
        header, rows = (table[0], table[1:]) if table else ([], [])
        if len(set(header)) < len(header):
            raise self.damaged("two columns have the same name")
        return header, rows

    def records(self) -> list[dict[str, str]]:
        """Return the rows of a CSV file, each a dict of texts by column.

        Raises:
            RunFolderError: the file is not CSV, column names repeat, or a row does not have a cell for each column.
        """
        header, rows = self.table()
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise self.damaged(f"line {number} has {len(row)} cells, but the header has {len(header)}")
        return [dict(zip(header, row, strict=True)) for row in rows]

    def metrics(self) -> list[dict[str, float]]:
        """Return the rows of a CSV file of metrics, each a dict of numbers by column, without empty cells.

        Raises:
            RunFolderError: see ``records``; or a cell is not a number, or a row has no valid number of timesteps.
        """
        table = []
        for number, row in enumerate(self.records(), start=2):
            try:
                table.append({name: float(text) for name, text in row.items() if text})
            except ValueError as error:
                raise self.damaged(f"line {number}: {error}") from error
            if not 0 <= table[-1].get("timesteps", math.nan) < 2**63:
                raise self.damaged(f"line {number} has no valid number of timesteps")
        return table

    def damaged(self, reason: str) -> RunFolderError:
        """Build the error for a corrupted file; ``reason`` describes the problem."""
        return RunFolderError(
            f"{self.path} is corrupted ({reason}): repair it, or move it away to continue without its rows; then try "
            "again."
        )

    def open(self) -> None:
        """Open the file for appending."""
        with writing_to(self.path.parent):
            make_folder(self.path.parent)
            if self.path.exists() and not self._ends_with_newline():
                self.replace(self.lines())
            self._file = open_to_write(self.path, "a")

    def append(self, line: str) -> None:
        """Append one line, without its line end, and flush; open the file if necessary."""
        if self._file is None:
            self.open()
        assert self._file is not None, "open() sets the file"
        with writing_to(self.path.parent):
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    self.close()  # now, so that a later call does not fail again
                raise

    def replace(self, lines: Iterable[str]) -> None:
        """Replace all lines atomically: if the process is killed, the file has either the old or the new lines."""
        was_open = self._file is not None
        self.close()
        with writing_to(self.path.parent), replacing(self.path, "w") as file:
            file.writelines(line + "\n" for line in lines)
        if was_open:
            self.open()

    def close(self) -> None:
        """Close the file; it is reopened on demand."""
        file, self._file = self._file, None
        if file is not None:
            with writing_to(self.path.parent):
                file.close()

    def _ends_with_newline(self) -> bool:
        refuse_link(self.path)
        with open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def as_number(name: str, value: Any) -> int | float:
    """Return the value ``name`` of a row as a Python number; raise ``TypeError`` unless it is a single number."""
    if type(value) in (int, float):
        return value
    try:
        number = value.item() if hasattr(value, "item") else value
        return int(number) if isinstance(number, bool | int) else float(number)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"values of rows must be numbers, but {name!r} is {value!r:.80} ({type(value).__name__}): reduce it first."
        ) from error


class _FileRecorder(Recorder):
    """Recorder with one file, which is open from the start of a run to its end."""

    def __init__(self, path: Path | str) -> None:
        self._file = RowFile(path)

    def start(self, plan: RunPlan) -> None:
        self._file.open()

    def close(self) -> None:
        self._file.close()


class CsvRecorder(_FileRecorder):
    """Writes one line per row and one column per metric, except timings (``time/*``).

    Columns are in the order of their first appearance. A later column is added to the header, and is empty in earlier
    rows. Floats are written so that reading them gives the same bits.

    Raises:
        RunFolderError: the disk is full or read-only, or the existing file is corrupted.
        TypeError: a value is not a number.
    """

    _columns: list[str] | None = None

    def resume_at(self, iterations: int) -> None:
        header, rows = self._file.table()
        if not header:
            return
        rows = [row for at, row in zip(self._iterations(header, rows), rows, strict=True) if at <= iterations]
        # Columns used only by removed rows are also removed; they are added again when they first appear.
        filled = [i for i in range(len(header)) if any(row[i] for row in rows)]
        table = [[row[i] for i in filled] for row in (header, *rows)]
        self._file.replace(map(as_line, table) if rows else [])
        self._columns = None

    def write(self, row: Row) -> None:
        values = {name: repr(as_number(name, value)) for name, value in row.items() if not name.startswith(TIMED)}
        if self._columns is None:
            self._columns = self._file.table()[0]
        new = [name for name in values if name not in self._columns]
        if new:
            self._add_columns(new)
        self._file.append(as_line(values.get(name, "") for name in self._columns))

    def _iterations(self, header: list[str], rows: list[list[str]]) -> list[int]:
        """Return the iteration of each row; raise ``RunFolderError`` for a row with missing or non-numeric cells."""
        if "iterations" not in header:
            raise self._file.damaged("it has no column 'iterations'")
        column = header.index("iterations")
        for number, row in enumerate(rows, start=2):
            try:
                numbers = [float(cell or 0) for cell in row]
            except ValueError:
                numbers = []
            if len(numbers) != len(header) or not row[column].isdecimal():
                raise self._file.damaged(f"line {number} is not a row of {len(header)} numbers")
        return [int(row[column]) for row in rows]

    def _add_columns(self, new: list[str]) -> None:
        assert self._columns is not None, "write() has read the columns"
        rows = self._file.lines()[1:]
        self._columns = [*self._columns, *new]
        self._file.replace([as_line(self._columns), *(row + "," * len(new) for row in rows)])


def as_line(cells: Iterable[str]) -> str:
    """Format cells as a line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


class JsonlRecorder(_FileRecorder):
    """Writes one JSON object per row.

    Non-finite values are written as ``NaN``, ``Infinity`` and ``-Infinity``, which Python's ``json`` reads.

    Raises:
        RunFolderError: the disk is full or read-only, or the existing file is corrupted.
        TypeError: a value is not a number.
    """

    def resume_at(self, iterations: int) -> None:
        lines = self._file.lines()
        earlier = [line for i, line in enumerate(lines, start=1) if self._iteration(i, line) <= iterations]
        if len(earlier) < len(lines):
            self._file.replace(earlier)

    def write(self, row: Row) -> None:
        self._file.append(json.dumps({name: as_number(name, value) for name, value in row.items()}))

    def _iteration(self, number: int, line: str) -> int:
        try:
            return int(json.loads(line)["iterations"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self._file.damaged(f"line {number} is not a row with an iteration") from error
