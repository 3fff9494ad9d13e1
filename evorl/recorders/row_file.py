"""A text file of one row per line, that survives kills and is never truncated by a resume."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from evorl.runs.files import RunFolderError, make_folder, open_to_write, refuse_link, writing_to


class RowFile:
    """Lines appended one by one, each handed to the system when written.

    A kill can tear the last line only; such a rest is dropped when the file is opened again.

    Raises:
        RunFolderError: the disk is full or read-only, or a symbolic link is in the file's place; in one sentence.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def lines(self) -> list[str]:
        """The complete lines, without their ends; none when there is no file."""
        refuse_link(self.path)
        if not self.path.exists():
            return []
        try:
            with open(self.path, encoding="utf-8", newline="\n") as file:
                return file.read().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise self.damaged(f"{error.reason} at byte {error.start:,}") from error

    def damaged(self, what: str) -> RunFolderError:
        """The error for a file that is not as it was written, for a reason that ``what`` tells."""
        return RunFolderError(
            f"{self.path} is damaged ({what}): mend it, or move it away to go on without its rows, and start again."
        )

    def open(self) -> None:
        """Get ready to append."""
        with writing_to(self.path.parent):
            make_folder(self.path.parent)
            if self.path.exists() and not self._ends_with_newline():
                self.replace(self.lines())
            self._file = open_to_write(self.path, "a")

    def append(self, line: str) -> None:
        """Add one line."""
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
        """Put other lines in the place of all; a kill leaves either the old file or the new one."""
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
        """Close the file; it opens again when it is needed."""
        file, self._file = self._file, None
        if file is not None:
            with writing_to(self.path.parent):
                file.close()

    def _abandon(self) -> None:
        """Let go of a file that cannot be written, so that closing it does not fail once more."""
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
    """A row's value as a Python number.

    Raises:
        TypeError: it is no single number.
    """
    if type(value) in (int, float):
        return value
    try:
        number = value.item() if hasattr(value, "item") else value
        return int(number) if isinstance(number, bool | int) else float(number)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"rows hold numbers, but {name!r} is {value!r} ({type(value).__name__}): reduce it first."
        ) from error
