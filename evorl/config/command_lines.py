"""Text of command lines: settings for a shell, paths, and values in the grammar of Hydra's overrides.

Suggested commands can be pasted into a shell.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

from evorl.config.names import name_of

# Text that Hydra's grammar can only parse as a string, except for the constants below.
PLAIN = re.compile(r"(?:[A-Za-z_/]|\.\.?(?:/|$))[\w./:-]*", re.ASCII)
CONSTANTS = ("null", "true", "false", "nan", "inf")
QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def as_arguments(settings: Mapping[str, str | Path]) -> str:
    """Return settings as ``name=value`` arguments of a shell command, each quoted if necessary."""
    return " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())


def as_setting(flag: str, following: str = "") -> str:
    """Return the ``name=value`` form of a flag, for a message: ``seed=3`` for ``--seed 3`` and ``--seed=3``.

    Args:
        flag: argument that starts with dashes.
        following: next argument, the value if ``flag`` has no ``=``; if empty, a flag or a setting, ``VALUE`` is used.
    """
    name, equals, value = flag.lstrip("-").partition("=")
    is_value = bool(following) and not following.startswith("--") and "=" not in following
    return as_arguments({name.replace("-", "_") or "NAME": value if equals else following if is_value else "VALUE"})


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Return a setting of a sweep or search as ``name=value`` pairs for display, without shell quoting."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def shell_word(word: str | Path) -> str:
    """Return one argument of a shell command, quoted if necessary."""
    return shlex.quote(str(word))


def is_address(which: Path | str) -> bool:
    """Return True if ``which`` is text with a scheme, such as ``https://example.org/policy.zip``, and not a path."""
    return isinstance(which, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", which) is not None


def is_this_machine(host: str) -> bool:
    """Return True if a host is ``localhost`` or a loopback address, which other machines cannot reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def user_path(text: str | Path) -> Path:
    """Return a path with a leading ``~`` or ``~name`` expanded; names of unknown users are unchanged."""
    return Path(os.path.expanduser(text))


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
    """Return a value in the syntax of the command line: ``{a: [0.1, true]}`` for ``{"a": [0.1, True]}``.

    An array becomes a list. A function or class becomes its name, ``package.module:function``; errors: ``name_of``.
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_override(each)}" for name, each in value.items()) + "}"
    if isinstance(value, str | Path) or callable(value):
        return as_text(name_of(value) if callable(value) else str(value))
    binary = isinstance(value, bytes | bytearray | memoryview)
    is_array = hasattr(value, "ndim") and not binary  # of NumPy or JAX; their scalars have 0 axes
    if not binary and (isinstance(value, Sequence) or (is_array and value.ndim)):
        return "[" + ", ".join(map(as_override, value)) + "]"
    if not (is_array or value is None or isinstance(value, Real | Decimal)):
        raise ValueError(f"a setting is a number, text, list, mapping or None, not {type(value).__name__}: {value!r}.")
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
