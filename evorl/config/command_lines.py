"""Settings and paths as command lines have them; lines that messages propose can be pasted into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def as_arguments(settings: Mapping[str, str | Path]) -> str:
    """Return settings as ``name=value`` words of a shell's command line, each quoted where the shell needs it."""
    return " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Return a setting of a sweep or search for a person: ``name=value`` pairs, not quoted for a shell."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def shell_word(word: str | Path) -> str:
    """Return one word of a shell's command line, quoted where the shell needs it."""
    return shlex.quote(str(word))


def user_path(text: str | Path) -> Path:
    """Return a path that a user wrote, with ``~`` at its start as the home folder; ``~name`` of no user stays."""
    return Path(os.path.expanduser(text))
