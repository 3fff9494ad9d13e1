"""What a command replaces is kept beside it, under a numbered name: ``app.yaml.~1~``, then ``app.yaml.~2~``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from evorl.runs.files import refuse_link, write_text


def set_aside(path: Path) -> Path | None:
    """Move a file, folder or link to its next numbered name; return it, or ``None`` where there is nothing to move."""
    if not (path.exists() or path.is_symlink()):
        return None
    kept = next_backup(path)
    path.rename(kept)
    return kept


def replace_text(path: Path, text: str) -> Path | None:
    """Write a file, and keep what it was; ``None`` where it was not there, or says the same already.

    It is never missing in between: the new text takes its place in one move.

    Raises:
        RunFolderError: a symbolic link is in the way of the file or of the new text, in the folder of an app that may
            be a stranger's.
    """
    refuse_link(path)
    kept = None
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return None
        kept = next_backup(path)
        shutil.copy2(path, kept)
    beside = path.with_name(f"{path.name}.new")
    write_text(beside, text)
    beside.replace(path)
    return kept


def next_backup(path: Path) -> Path:
    """The numbered name after all that there are: gaps are left, so that a greater number is always later."""
    pattern = re.compile(re.escape(path.name) + r"\.~(\d+)~")
    numbers = [int(found[1]) for other in path.parent.iterdir() if (found := pattern.fullmatch(other.name))]
    return path.with_name(f"{path.name}.~{max(numbers, default=0) + 1}~")
