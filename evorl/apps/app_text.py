"""Edits ``app.yaml`` as text: replaces single entries and keeps all other lines and their comments."""

from __future__ import annotations

import re
from typing import Any

import yaml

from evorl.config.yaml_text import dump_yaml, read_yaml

_ENDS = (yaml.BlockEndToken, yaml.DocumentEndToken, yaml.StreamEndToken)  # tokens after blank lines and comments


def with_entry(text: str, name: str, entry: str) -> str:
    """Return the text with one top-level entry replaced, or appended if it is missing.

    Args:
        text: content of a YAML file that is a mapping.
        name: key of the entry.
        entry: new lines of the entry, which begin with its key and a colon.

    Raises:
        ValueError: the text is not valid YAML, not a mapping or in flow style; or it is invalid with the new entry, for
            example because another entry is an alias of a part of the replaced one.
    """
    lines = text.splitlines()
    existing = _line_range(text, name)
    if existing is None and lines and lines[-1].strip():
        lines.append("")
    first, end = existing or (len(lines), len(lines))
    changed = "\n".join([*lines[:first], entry.rstrip("\n"), *lines[end:]]) + "\n"
    read_mapping(changed, f"app.yaml with the new entry {name}")
    return changed


def with_values(section: str, values: dict[str, str]) -> str:
    """Return the YAML text of a section with its first-level entries, one line each, set to ``values``.

    Comments at the ends of lines are kept. Missing entries are appended.
    """
    for name, value in values.items():
        pattern = re.compile(rf"^(  {re.escape(name)}:)[^#\n]*?( *#[^\n]*)?$", re.MULTILINE)
        if pattern.search(section):
            section = pattern.sub(lambda m, value=value: f"{m[1]} {value}{m[2] or ''}", section, count=1)
        else:
            section = section.rstrip("\n") + f"\n  {name}: {value}\n"
    return section


def as_entry(name: str, value: Any) -> str:
    """Return an entry in block style; values that are not mappings, such as lists of numbers, stay on one line."""
    return "\n".join(_lines(name, value, "")) + "\n"


def _lines(name: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict) and value:
        below = [line for key, each in value.items() for line in _lines(str(key), each, f"{indent}  ")]
        return [f"{indent}{name}:", *below]
    return [f"{indent}{name}: {in_one_line(value)}"]


def in_one_line(value: Any) -> str:
    """Return a value as YAML on one line."""
    dumped = dump_yaml(value, default_flow_style=True, sort_keys=False, width=10_000)
    return dumped.removesuffix("...\n").rstrip("\n").removesuffix("\n...")


def read_mapping(text: str, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML text; raise ``ValueError``, with the file's ``name``, for other texts."""
    read = read_yaml(text, name)
    if not isinstance(read, dict):
        raise ValueError(f"{name} must be a mapping from settings to values, got {read!r:.80}.")
    return read


def _line_range(text: str, name: str) -> tuple[int, int] | None:
    """Return line numbers, from 0: the first of a top-level entry and the one after its last; ``None`` if missing."""
    read_mapping(text, "app.yaml")
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if root.flow_style:
        raise ValueError("app.yaml is in flow style, {...}, and cannot be edited: write each entry on a separate line.")
    starts = {key.value: key.start_mark.line for key, _ in root.value}
    if name not in starts:
        return None
    first = starts[name]
    following = min((line for line in starts.values() if line > first), default=len(text))
    # Unlike nodes, tokens end before the blank lines and comments that follow, and aliases have their own tokens.
    tokens = [token for token in yaml.scan(text, Loader=yaml.SafeLoader) if not isinstance(token, _ENDS)]
    ends = [token.end_mark for token in tokens if first <= token.start_mark.line < following]
    return first, max(at.line + (at.column > 0) for at in ends)  # a block scalar ends at column 0 of the next line
