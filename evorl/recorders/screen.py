"""Prints text on a terminal: unsupported characters are replaced by ASCII, and control characters are escaped."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from evorl.ops.terminal_text import escaped, raw_stream

_ASCII_REPLACEMENTS = str.maketrans({"±": "+-", **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*#@", strict=True))})


def printable(text: str, encoding: str | None, colors: bool = False) -> str:
    """Return the text with control characters escaped, and with characters that the terminal cannot show replaced.

    Args:
        text: text to show.
        encoding: encoding of the terminal. Characters that it does not support are replaced: ``±`` and the bars of
            sparklines by ASCII, others by ``?``. ``None``, as for in-memory streams, supports every character.
        colors: true keeps color sequences.
    """
    text = escaped(text, colors)
    if encoding is None:
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII_REPLACEMENTS).encode(encoding, errors="replace").decode(encoding)
    return text


@contextlib.contextmanager
def announced(text: str, seconds: float = 1.0) -> Iterator[None]:
    """Print a line on standard error if the context takes longer than ``seconds``, so that no command is silent."""
    timer = threading.Timer(seconds, print_line, (text, sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_line(text: str, stream: TextIO | None = None, colors: bool = False) -> None:
    """Print a line to ``stream``, by default standard output, and flush; ``colors`` keeps color sequences."""
    stream = raw_stream(sys.stdout if stream is None else stream)
    print(printable(text, getattr(stream, "encoding", None), colors), file=stream, flush=True)
