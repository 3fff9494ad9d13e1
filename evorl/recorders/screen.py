"""Text on a screen of any encoding: signs that it cannot show are told in ASCII, so that no locale ends a run."""

from __future__ import annotations

import sys
from typing import TextIO

_IN_ASCII = str.maketrans({"±": "+-", **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*#@", strict=True))})


def printable(text: str, encoding: str | None) -> str:
    """``text``, if ``encoding`` has all its signs; else with those of ours in ASCII, and ``?`` for others it lacks.

    Without an encoding, as of a stream in memory, every sign can be shown.
    """
    if encoding is None:
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once, on standard output unless ``stream`` is another one."""
    stream = sys.stdout if stream is None else stream
    print(printable(text, getattr(stream, "encoding", None)), file=stream, flush=True)
