"""Numbered backups of replaced files, in the same folder: ``app.yaml.~1~``, then ``app.yaml.~2~``."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from evorl.runs.files import refuse_link, write_atomically


def set_aside(path: Path) -> Path | None:
    """Rename a file, folder or link to its next backup path; return this path, or ``None`` if ``path`` is missing."""
    if not (path.exists() or path.is_symlink()):
        return None
    backup = next_backup(path)
    path.rename(backup)
    return backup


@contextlib.contextmanager
def replaced(path: Path, backups: list[Path | None]) -> Iterator[None]:
    """Move a folder to a backup, whose path or None is appended to ``backups``. If the context raises, undo all."""
    backup = set_aside(path)
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        if backup is not None:
            backup.rename(path)
        raise
    backups.append(backup)


def replace_text(path: Path, text: str) -> Path | None:
    """Write a file and return the path of its backup; ``None`` if the file is new or unchanged.

    The write is atomic: the file is never missing.

    Raises:
        RunFolderError: the file is a symbolic link. An app folder may come from an untrusted source.
    """
    refuse_link(path)
    backup = None
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return None
        backup = next_backup(path)
        shutil.copy2(path, backup)
    write_atomically(path, text)
    return backup


def next_backup(path: Path) -> Path:
    """Return the path of the next backup of ``path``: its number is one above the highest number in use."""
    pattern = re.compile(re.escape(path.name) + r"\.~(\d+)~")
    numbers = [int(match[1]) for other in path.parent.iterdir() if (match := pattern.fullmatch(other.name))]
    return path.with_name(f"{path.name}.~{max(numbers, default=0) + 1}~")
