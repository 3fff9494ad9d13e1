"""Checks errors by their parts, so that better wording breaks no test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises_naming(kind: type[E] | tuple[type[E], ...], *parts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error whose text contains each part: the key, the value, the suggestion, the advice.

    Parts are compared as plain text, regardless of case and of line breaks.

    Args:
        kind: type of the error, or several.
        parts: texts, or values that the text shows as ``str`` does.
    """
    assert parts, "name at least one part of the error's text"
    with pytest.raises(kind) as raised:
        yield raised
    text = " ".join(str(raised.value).split())
    missing = [str(part) for part in parts if " ".join(str(part).split()).lower() not in text.lower()]
    assert not missing, f"the error does not name {missing}: {text}"
