"""A text file with one row per line that survives kills and is never truncated by a resume."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from evorl.runs.files import RunFolderError, make_folder, open_to_write, refuse_link, writing_to


class RowFile:
    """Appends lines; each is flushed to the operating system when written.

    A kill can only leave an incomplete last line, which is dropped when the file is opened again.

    Raises:
        RunFolderError: the disk is full or read-only, or the path is a symbolic link.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def lines(self) -> list[str]:
        """Return the complete lines, without line ends; an empty list without a file."""
        refuse_link(self.path)
        if not self.path.exists():
            return []
        try:
            with open(self.path, encoding="utf-8", newline="\n") as file:
                return file.read().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise self.damaged(f"{error.reason} at byte {error.start:,}") from error

    def damaged(self, reason: str) -> RunFolderError:
        """Build the error for a corrupted file; ``reason`` describes the problem."""
        return RunFolderError(
            f"{self.path} is corrupted ({reason}): repair it, or move it away to continue without its rows; then start "
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
        """Append one line."""
        if self._file is None:
            self.open()
        assert self._file is not None, "open() sets the file"
        with writing_to(self.path.parent):
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError:
                self._abandon()
                raise

    def replace(self, lines: Iterable[str]) -> None:
        """Replace all lines atomically; a kill leaves either the old file or the new one."""
        was_open = self._file is not None
        self.close()
        written = self.path.with_name(self.path.name + ".new")
        with writing_to(self.path.parent):
            with open_to_write(written) as file:
                file.writelines(line + "\n" for line in lines)
            os.replace(written, self.path)
        if was_open:
            self.open()

    def close(self) -> None:
        """Close the file; it is reopened on demand."""
        file, self._file = self._file, None
        if file is not None:
            with writing_to(self.path.parent):
                file.close()

    def _abandon(self) -> None:
        """Drop a file that cannot be written, so that closing it does not fail again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _ends_with_newline(self) -> bool:
        refuse_link(self.path)
        with open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def as_number(name: str, value: Any) -> int | float:
    """Return a row's value as a Python number.

    Raises:
        TypeError: the value is not a single number.
    """
    if type(value) in (int, float):
        return value
    try:
        number = value.item() if hasattr(value, "item") else value
        return int(number) if isinstance(number, bool | int) else float(number)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"values of rows must be numbers, but {name!r} is {value!r} ({type(value).__name__}): reduce it first."
        ) from error
