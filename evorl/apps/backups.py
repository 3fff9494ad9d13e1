"""What a command replaces is kept beside it, under a numbered name: ``app.yaml.~1~``, then ``app.yaml.~2~``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def set_aside(path: Path) -> Path | None:
    """Move a file or folder to its next numbered name; ``None`` where there is nothing to move."""
    if not path.exists():
        return None
    kept = next_backup(path)
    path.rename(kept)
    return kept


def replace_text(path: Path, text: str) -> Path | None:
    """Write a file, and keep what it was; ``None`` where it was not there, or says the same already.

    It is never missing in between: the new text takes its place in one move.
    """
    kept = None
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return None
        kept = next_backup(path)
        shutil.copy2(path, kept)
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return kept


def next_backup(path: Path) -> Path:
    """The numbered name after all that there are: gaps are left, so that a greater number is always later."""
    pattern = re.compile(re.escape(path.name) + r"\.~(\d+)~")
    numbers = [int(found[1]) for other in path.parent.iterdir() if (found := pattern.fullmatch(other.name))]
    return path.with_name(f"{path.name}.~{max(numbers, default=0) + 1}~")
