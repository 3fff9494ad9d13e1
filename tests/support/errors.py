"""Checks errors by what they name, so that a better sentence breaks no test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises_naming(kind: type[E] | tuple[type[E], ...], *parts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error whose text contains each part: the key, the value, the suggestion, the remedy.

    Args:
        kind: type of the error, or several.
        parts: see ``assert_names``.
    """
    assert parts, "name at least one part of the error's text"
    with pytest.raises(kind) as raised:
        yield raised
    assert_names(str(raised.value), *parts)


def assert_names(text: str, *parts: object) -> None:
    """Check that an error or a printed text contains each part.

    Parts are compared as plain text, regardless of case and of line breaks.

    Args:
        text: text to search.
        parts: texts, or values that the text shows as ``str`` does.
    """
    assert parts, "name at least one part of the text"
    joined = " ".join(text.split())
    missing = [str(part) for part in parts if " ".join(str(part).split()).lower() not in joined.lower()]
    assert not missing, f"the text does not name {missing}: {joined}"
