"""Edits ``app.yaml`` as text: replaces single entries and keeps all other lines and their comments."""

from __future__ import annotations

import re
from typing import Any

import yaml

from evorl.config.yaml_text import dump_yaml, read_yaml


def with_entry(text: str, name: str, entry: str) -> str:
    """Return the text with one top-level entry replaced, or appended if it is missing.

    Args:
        text: content of a YAML file that is a mapping.
        name: key of the entry.
        entry: new lines of the entry, which begin with its key and a colon.

    Raises:
        ValueError: the text is not valid YAML, or not a mapping.
    """
    lines, entry_lines = text.splitlines(), entry.rstrip("\n").splitlines()
    first_last = _line_range(text, name)
    if first_last is None:
        gap = [""] if lines and lines[-1].strip() else []
        return "\n".join([*lines, *gap, *entry_lines]) + "\n"
    first, last = first_last
    return "\n".join([*lines[:first], *entry_lines, *lines[last + 1 :]]) + "\n"


def with_values(section: str, values: dict[str, str]) -> str:
    """Return the text of a section with new values for its first-level entries, which have one line each.

    Trailing comments are kept. Missing entries are appended.
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
    """Return the mapping that a YAML text describes; ``name`` is the file name for error messages.

    Raises:
        ValueError: the text is not valid YAML, or not a mapping.
    """
    read = read_yaml(text, name)
    if not isinstance(read, dict):
        raise ValueError(f"{name} must be a mapping from settings to values, got {read!r:.80}.")
    return read


def _line_range(text: str, name: str) -> tuple[int, int] | None:
    """Return the first and last line of a top-level entry, counted from 0; ``None`` if it is missing."""
    read_mapping(text, "app.yaml")
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value:
        if key.value == name:
            return key.start_mark.line, max(key.end_mark.line, _last_line(value))
    return None


def _last_line(node: Any) -> int:
    """Return the last line with content of a node; YAML's end mark of a block is after blank lines and comments."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        at = node.end_mark
        return at.line - (1 if at.column == 0 and at.line > node.start_mark.line else 0)
    last = node.value[-1] if node.value else None
    if last is None:
        return node.start_mark.line
    return _last_line(last[1] if isinstance(last, tuple) else last)
