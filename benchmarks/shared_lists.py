"""Lists of a YAML file that contain other lists."""

from __future__ import annotations

from collections.abc import Sequence


def flat(entries: Sequence[str | Sequence[str]]) -> list[str]:
    """Flatten a list of texts, in which YAML represents shared texts as nested lists."""
    return [text for entry in entries for text in ([entry] if isinstance(entry, str) else entry)]
