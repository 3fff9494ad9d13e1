"""Lists of a YAML file that have others among their entries."""

from __future__ import annotations

from collections.abc import Sequence


def flat(entries: Sequence[str | Sequence[str]]) -> list[str]:
    """Texts in one list; YAML puts the shared ones into it as a list of their own."""
    return [text for entry in entries for text in ([entry] if isinstance(entry, str) else entry)]
