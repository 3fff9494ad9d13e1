"""Frames of the parameter server: a JSON object of a few numbers, and behind it bytes as they are.

A frame is two lengths (unsigned, 32 bits, little-endian), the JSON in UTF-8, and the bytes. A request names its
``command``; an answer has what was asked for, or an ``error`` in words.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

LENGTHS = struct.Struct("<II")
MAX_HEADER = 1 << 14  # bytes of the JSON
MAX_BODY = (1 << 32) - 1


class WireError(Exception):
    """What came is no frame, or one that is too large: the connection is of no use any more."""


class CommandRefused(ValueError):
    """The other side understood, and says in words why not."""


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of a frame.

    Raises:
        ValueError: it is too large, or the header holds what JSON has no word for, NaN among them.
    """
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(f"a frame has up to {MAX_HEADER:,} bytes of JSON and {MAX_BODY:,} behind it.")
    return LENGTHS.pack(len(text), len(body)) + text + body


def lengths(data: bytes, max_header: int = MAX_HEADER) -> tuple[int, int]:
    """Return the numbers of bytes of JSON, and after it, that follow these 8.

    Raises:
        WireError: the JSON would be empty or too long.
    """
    header, body = LENGTHS.unpack(data)
    if not 2 <= header <= max_header:
        raise WireError(f"a frame begins with 2 to {max_header:,} bytes of JSON, and this one says {header:,}.")
    return header, body


def parsed_header(data: bytes) -> dict[str, Any]:
    """The JSON object of a frame.

    Raises:
        WireError: it is none.
    """
    try:
        header = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # deep nesting is the latter
        raise WireError("a frame begins with a JSON object, and this one does not.") from error
    if not isinstance(header, dict):
        raise WireError(f"a frame begins with a JSON object, and this one with a {type(header).__name__}.")
    return header


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def whole_number(header: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A number of a header, from 0 to 2^53.

    Raises:
        CommandRefused: it is missing, or something else.
    """
    value = header.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**53:
        raise CommandRefused(f"{name} is a whole number from 0 to 2^53, got {str(value)[:40]!r}.")
    return value
