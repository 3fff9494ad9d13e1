"""Text for a terminal: control characters are escaped, so that a name from a file cannot control the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

# All control characters except newlines and tabs; Unicode line separators; characters that change the writing
# direction; lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_AND_LINES = re.compile(f"{_CONTROL.pattern}|[\t\n]")
_COLOR = re.compile("(\x1b\\[[0-9;]*m)")


def escaped(text: str, colors: bool = False, lines: bool = False) -> str:
    r"""Return the text with control characters escaped as in Python, such as ``\x1b`` for the escape character.

    Args:
        text: text to display.
        colors: preserve the escape sequences of colors.
        lines: also escape newlines and tabs, so that the text fits in a table cell; no effect together with ``colors``.
    """
    if colors:
        parts = _COLOR.split(text)
        return "".join(part if i % 2 else escaped(part) for i, part in enumerate(parts))
    pattern = _CONTROL_AND_LINES if lines else _CONTROL
    return pattern.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 step`` or ``2,000 steps``; the plural ends with s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class TerminalStream:
    """Forwards text to standard output or error, and escapes control characters.

    A carriage return at the start of a text is preserved, because progress bars of other libraries begin with one.

    Attributes:
        raw: wrapped stream, for output that needs control characters.
    """

    def __init__(self, stream: Any) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        """Write the text with control characters escaped; return the length of the original text."""
        start = "\r" if text[:1] == "\r" else ""
        self.raw.write(start + escaped(text[len(start) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text of ``lines`` as ``write`` does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def aligned(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the rows of a table as lines with aligned columns; ``right`` has the indices of right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    pad = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return [
        "  ".join(f(cell, width) for f, cell, width in zip(pad, row, widths, strict=True)).rstrip() for row in table
    ]


def raw_stream(stream: Any) -> Any:
    """Return the stream wrapped by a ``TerminalStream``; other streams are returned unchanged."""
    return stream.raw if isinstance(stream, TerminalStream) else stream


def sentence(text: str) -> str:
    """Return the text with its first letter capitalized."""
    return text[:1].upper() + text[1:]
