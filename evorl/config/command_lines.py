"""Formatting of settings and paths for command lines, so that suggested commands can be pasted into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def as_arguments(settings: Mapping[str, str | Path]) -> str:
    """Return settings as ``name=value`` arguments of a shell command, each quoted if necessary."""
    return " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Return a setting of a sweep or search as ``name=value`` pairs for display, without shell quoting."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def shell_word(word: str | Path) -> str:
    """Return one argument of a shell command, quoted if necessary."""
    return shlex.quote(str(word))


def user_path(text: str | Path) -> Path:
    """Return a path with a leading ``~`` or ``~name`` expanded; names of unknown users are left unchanged."""
    return Path(os.path.expanduser(text))
