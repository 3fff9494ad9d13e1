"""The pages of the documentation as data: their code blocks, and the tables that follow from the YAML and from results.

``python -m tests.doc_pages`` rewrites the tables in the pages.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.learning_page import with_learning
from benchmarks.results import load

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(<!-- settings: (\S+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)
_SETTING = re.compile(r"^( *)([\w/]+):(?: +(.*?))? *(?:# (.*))?$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that the text begins in."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """The README and every page below ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1) for match in _FENCE.finditer(text)]


def settings(file: Path) -> Iterator[tuple[str, str, str]]:
    """Dotted key, default and comment of every setting in a commented YAML file; parents come without a default."""
    parents: list[tuple[int, str]] = []
    in_block = ""  # defaults and hydra's own settings are no options of ours
    for line in file.read_text(encoding="utf-8").splitlines():
        match = _SETTING.match(line)
        if not match or not line.strip() or line.lstrip().startswith(("#", "-")):
            continue
        indent, key, value, comment = len(match[1]), match[2], match[3] or "", match[4] or ""
        if indent == 0:
            in_block = key
        if in_block in ("defaults", "hydra"):
            continue
        while parents and parents[-1][0] >= indent:
            parents.pop()
        name = ".".join([*(parent for _, parent in parents), key])
        parents.append((indent, key))
        if value.startswith("&"):
            value = ""
        yield name, value, comment


def settings_table(file: Path) -> str:
    """The settings of a file as a Markdown table."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, value, comment in settings(file):
        if value.startswith("*"):
            value, comment = "", f"{comment} (those of `{_anchor_owner(file, value[1:])}`)"
        elif not value and not comment:
            continue
        rows.append(f"| `{name}` | {f'`{value}`' if value else ''} | {comment.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def _anchor_owner(file: Path, anchor: str) -> str:
    match = re.search(rf"^(\w+): &{anchor}\b", file.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else anchor


def with_tables(text: str) -> str:
    """A page's text with its tables as the YAML files and the recorded results have it now."""
    text = _TABLE.sub(lambda m: f"{m[1]}\n{settings_table(ROOT / m[2])}\n{m[3]}", text)
    return with_learning(text, load("learning"))


if __name__ == "__main__":
    for path in pages():
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
