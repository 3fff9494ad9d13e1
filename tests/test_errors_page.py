"""The page on troubleshooting quotes messages that the package has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guide" / "errors.md"
SHORTEST = 5  # characters of a fragment that is looked up


def texts_of(source: str) -> Iterator[str]:
    """Yield the strings of a source in lower case, except docstrings; a value in an f-string is a null character."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value.lower()
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values).lower()
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "no_such":
            kind = node.args[0]
            yield f"unknown {kind.value}".lower() if isinstance(kind, ast.Constant) else ""


def fragments(page: str) -> Iterator[str]:
    """Yield the parts of the messages in the first column of the page's tables; ``...`` separates parts."""
    for row in re.findall(r'^\| (".*?") \| ', page, re.MULTILINE):
        for message in re.findall(r'"([^"]+)"', row):
            parts = (part.strip(" .:,").lower() for part in message.split("..."))
            yield from (part for part in parts if len(part) >= SHORTEST)


def is_composed(fragment: str, texts: str, num_pieces: int | None = None) -> bool:
    """Return True if texts contain the fragment, or few pieces that together form the fragment."""
    words = fragment.split()
    left = 1 + len(words) // 3 if num_pieces is None else num_pieces
    if not words or left == 0:
        return not words
    heads = [n for n in range(len(words), 0, -1) if " ".join(words[:n]) in texts]
    return any(is_composed(" ".join(words[n:]), texts, left - 1) for n in heads)


@pytest.fixture(scope="module")
def texts() -> str:
    return "\n".join(text for file in (ROOT / "evorl").rglob("*.py") for text in texts_of(file.read_text("utf-8")))


def test_the_quoted_messages_exist(texts: str) -> None:
    quoted = list(fragments(PAGE.read_text("utf-8")))
    assert len(quoted) > 40
    assert [part for part in quoted if not is_composed(part, texts)] == []


def test_a_message_that_does_not_exist_is_found(texts: str) -> None:
    row = '| "... cannot be set, because ... is null", "... must be a positive integer" | cause | solution |\n'
    assert [part for part in fragments(row) if not is_composed(part, texts)] == ["cannot be set, because"]
