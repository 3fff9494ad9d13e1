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
# Fragments that the code composes of several strings.
COMPOSED = {
    "transitions cannot be cut into": (" transitions", " cannot be cut into "),
    "must be a positive integer": ("\0 must be \0", "a positive integer"),
    "was removed or moved while the run wrote to it": ("was removed or moved", " while the run wrote to it"),
    "must be at most 2^31 - 1": ("\0 must be \0", "at most \0", "2^\0 - 1 = \0"),
    "evorl train does not accept run=": ("evorl \0 does not accept \0",),
}


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


def exists(fragment: str, texts: str) -> bool:
    return all(part in texts for part in COMPOSED.get(fragment, (fragment,)))


@pytest.fixture(scope="module")
def texts() -> str:
    return "\n".join(text for file in (ROOT / "evorl").rglob("*.py") for text in texts_of(file.read_text("utf-8")))


def test_the_quoted_messages_exist(texts: str) -> None:
    quoted = list(fragments(PAGE.read_text("utf-8")))
    assert len(quoted) > 40
    assert [part for part in quoted if not exists(part, texts)] == []


def test_a_message_that_does_not_exist_is_found(texts: str) -> None:
    row = '| "... cannot be set, because ... is null", "... must be a positive integer" | cause | solution |\n'
    assert [part for part in fragments(row) if not exists(part, texts)] == ["cannot be set, because"]
