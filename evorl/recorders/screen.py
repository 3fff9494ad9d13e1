"""Text on a screen: characters that its encoding lacks are written in ASCII, and control characters are escaped."""

from __future__ import annotations

import sys
from typing import TextIO

from evorl.ops.terminal_text import escaped, raw_stream

_IN_ASCII = str.maketrans({"±": "+-", **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*#@", strict=True))})


def printable(text: str, encoding: str | None, colours: bool = False) -> str:
    """Return the text as a screen can show it: control characters escaped, and others in ASCII if necessary.

    Args:
        text: to be shown.
        encoding: of the screen. It may lack characters: ours are replaced by ASCII, others by ``?``. ``None``, as of a
            stream in memory, has every character.
        colours: whether colour sequences stay as they are.
    """
    text = escaped(text, colours)
    if encoding is None:
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


def print_line(text: str, stream: TextIO | None = None, colours: bool = False) -> None:
    """Print a line at once.

    Args:
        text: the line.
        stream: where to, by default standard output.
        colours: whether colour sequences stay as they are.
    """
    stream = raw_stream(sys.stdout if stream is None else stream)
    print(printable(text, getattr(stream, "encoding", None), colours), file=stream, flush=True)
