"""Terminal output: control characters in names are escaped."""

from __future__ import annotations

import io

import pytest

from evorl.ops.terminal_text import TerminalStream, aligned, escaped, raw_stream


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J\x1b[31mred", r"\x1b[2J\x1b[31mred"),
        ("\x9b31m", r"\x9b31m"),
        ("over\rwritten\x08\x7f", r"over\rwritten\x08\x7f"),
        ("\x00", r"\x00"),
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),
        ("\u2066x\u2069\u2028", r"\u2066x\u2069\u2028"),
        ("\ud800", r"\ud800"),
        ("1 ± 2\tµ 漢字 🙂\n", "1 ± 2\tµ 漢字 🙂\n"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert escaped(text) == shown
    stream = io.StringIO()
    print(f"a{text}", file=TerminalStream(stream), end="")
    assert stream.getvalue() == f"a{shown}"


def test_cells_and_colors() -> None:
    assert escaped("a\nb\tc", lines=True) == r"a\nb\tc"
    assert escaped("\x1b[31mred\x1b[0m\x1b[2J", colors=True) == "\x1b[31mred\x1b[0m" + r"\x1b[2J"


def test_it_is_the_stream_otherwise() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    stream = TerminalStream(inner)
    assert (stream.encoding, stream.isatty(), raw_stream(stream), raw_stream(inner)) == ("latin-1", False, inner, inner)
    stream.writelines(["\r 10 %", "x\ry\n"])
    stream.flush()
    assert inner.buffer.getvalue() == rb"\r 10 %x\ry".replace(rb"\r", b"\r", 1) + b"\n"


def test_columns_are_aligned() -> None:
    assert aligned([("run", "steps"), ("a", "10"), ("abcd", "5")], right=(1,)) == [
        "run   steps",
        "a        10",
        "abcd      5",
    ]
    assert aligned([("a", "b"), ("long", "")]) == ["a     b", "long"]


@pytest.mark.parametrize(
    "character", "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ids=ascii
)
def test_characters_of_the_writing_direction_are_escaped(character: str) -> None:
    """All characters with Unicode's property ``Bidi_Control``."""
    assert escaped(f"a{character}b") == f"a\\u{ord(character):04x}b"
