"""Checks errors by their parts, so that better wording breaks no test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)
_SENTENCE = re.compile(r"(?<![\w.'=])[A-Za-z]+(?:,? [A-Za-z]+){4,}(?!\w)")


@contextmanager
def raises_naming(kind: type[E] | tuple[type[E], ...], *parts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error whose text contains each part: the key, the value, the suggestion, the advice.

    Args:
        kind: type of the error, or several.
        parts: see ``assert_names``.
    """
    assert parts, "name at least one part of the error's text"
    with pytest.raises(kind) as raised:
        yield raised
    assert_names(str(raised.value), *parts)


def assert_names(text: str, *parts: object) -> None:
    """Check that an error or a printed text contains each part, see ``missing_parts``."""
    missing = missing_parts(text, *parts)
    assert not missing, f"the text does not name {missing}: {text}"


def missing_parts(text: str, *parts: object) -> list[str]:
    """Return the parts that a text does not contain, regardless of case and of line breaks."""
    assert parts, "name at least one part of the text"
    words = " ".join(text.split()).lower()
    return [str(part) for part in parts if " ".join(str(part).split()).lower() not in words]


def matched_sentences(tree: ast.AST) -> list[tuple[str, int]]:
    """Return the sentences that ``match=`` of a Python file compares: more than four plain words in a row.

    Args:
        tree: the syntax tree of the file.

    Returns:
        The words, and the line of the call.
    """
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    matches = ((key.value, call.lineno) for call in calls for key in call.keywords if key.arg == "match")
    texts = ((text, line) for value, line in matches for text in ast.walk(value) if isinstance(text, ast.Constant))
    return [(found[0], line) for text, line in texts if (found := _SENTENCE.search(str(text.value)))]
