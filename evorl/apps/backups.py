"""What a command replaces is kept beside it, under a numbered name: ``app.yaml.~1~``, then ``app.yaml.~2~``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from evorl.runs.files import refuse_link, write_atomically


def set_aside(path: Path) -> Path | None:
    """Move a file, folder or link to its next numbered name; return it, or ``None`` where there is nothing to move."""
    if not (path.exists() or path.is_symlink()):
        return None
    kept = next_backup(path)
    path.rename(kept)
    return kept


def replace_text(path: Path, text: str) -> Path | None:
    """Write a file, and return the backup of the text before; ``None`` where the file is new or unchanged.

    The file is never missing in between.

    Raises:
        RunFolderError: a symbolic link is in the way of the file or of the new text: the folder of an app may come
            from a stranger.
    """
    refuse_link(path)
    kept = None
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return None
        kept = next_backup(path)
        shutil.copy2(path, kept)
    write_atomically(path, text)
    return kept


def next_backup(path: Path) -> Path:
    """The numbered name after all that there are: gaps are left, so that a greater number is always later."""
    pattern = re.compile(re.escape(path.name) + r"\.~(\d+)~")
    numbers = [int(found[1]) for other in path.parent.iterdir() if (found := pattern.fullmatch(other.name))]
    return path.with_name(f"{path.name}.~{max(numbers, default=0) + 1}~")
