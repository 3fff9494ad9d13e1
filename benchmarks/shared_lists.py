"""Lists of a YAML file that contain other lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def flat(entries: Sequence[Any]) -> list[str]:
    """Flatten a list of texts, in which YAML represents shared texts as lists, nested to any depth."""
    return [text for entry in entries for text in ([entry] if isinstance(entry, str) else flat(entry))]
