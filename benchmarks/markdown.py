"""Markdown building blocks of the result pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"


def verdict(met: bool) -> str:
    """Return ``met`` or ``not met`` as Markdown."""
    return "met" if met else "**not met**"


def show_versions(versions: Mapping[str, str]) -> str:
    """Return packages with their versions as text."""
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def provenance(result: Mapping[str, Any], *remarks: str) -> str:
    """Return date, machine and load of a result, and further remarks, in small print."""
    load = f"load at most {result['load']:.1f}" if "load" in result else ""
    texts = [result.get("date", ""), result.get("machine", ""), load, *remarks]
    return f"<small>{'. '.join(text for text in texts if text)}</small>\n"
