"""Values in the grammar of Hydra's overrides: quoted strings, and Python values as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Text that Hydra's grammar can only parse as a string, except for the constants below.
PLAIN = re.compile(r"(?:[A-Za-z_/]|\.\.?(?:/|$))[\w./:-]*", re.ASCII)
CONSTANTS = ("null", "true", "false", "nan", "inf")
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def quote(text: str) -> str:
    """Return text as a quoted string of Hydra's grammar.

    A backslash is doubled only before a quote and at the end, where the grammar would parse it as an escape.
    """
    escaped = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + (f"\\{match[2]}" if match[2] else ""), text)
    return f"'{escaped}'"


def unquote(value: str) -> str:
    """Return the text of a value: the content of a quoted string of Hydra's grammar, or the value itself."""
    if not QUOTED.fullmatch(value):
        return value
    mark = value[0]
    return re.sub(
        rf"(\\+)({mark}|\Z)", lambda match: "\\" * (len(match[1]) // 2) + match[2], value[1:-1], flags=re.DOTALL
    )


def as_text(text: str) -> str:
    """Return text that Hydra parses as the same string: unchanged if it is plain, else quoted."""
    return text if PLAIN.fullmatch(text) and text.lower() not in CONSTANTS else quote(text)


def as_override(value: Any) -> str:
    """Return a value in the syntax of the command line: ``{a: [0.1, true]}`` for ``{"a": [0.1, True]}``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_override(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_override, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return as_text(str(value)) if isinstance(value, str | Path) else str(value)
