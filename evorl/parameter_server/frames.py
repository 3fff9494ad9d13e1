"""Frames of the parameter server: a small JSON header followed by a binary body.

A frame consists of the lengths of JSON and body in bytes (unsigned, 32 bits, little-endian), the JSON in UTF-8, and the
body. A request has the key ``command``; a response contains the results, or an error message under the key ``error``.
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
    """Raised for an invalid or oversized frame, or a wrong token; the connection can no longer be used."""


class CommandRefused(ValueError):
    """Raised, with the reason, for a command that the server rejects, or for a response that the client rejects."""


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a frame; raise ``ValueError`` if it is too large, or a value is not JSON, such as NaN."""
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(
            f"a frame may have at most {MAX_HEADER:,} bytes of JSON and a body of {MAX_BODY:,} bytes, "
            f"got {len(text):,} and {len(body):,}."
        )
    return LENGTHS.pack(len(text), len(body)) + text + body


def lengths(data: bytes, max_header: int = MAX_HEADER) -> tuple[int, int]:
    """Return the lengths of header and body from a frame's first 8 bytes; raise ``WireError`` if invalid."""
    header, body = LENGTHS.unpack(data)
    if not 2 <= header <= max_header:
        raise WireError(f"the header of a frame must have 2 to {max_header:,} bytes of JSON, got {header:,}.")
    return header, body


def parsed_header(data: bytes) -> dict[str, Any]:
    """Return the header of a frame, parsed from JSON; raise ``WireError`` unless it is a JSON object."""
    try:
        header = json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # RecursionError: deep nesting
        raise WireError("the header of a frame must be a JSON object, got invalid JSON.") from error
    if not isinstance(header, dict):
        raise WireError(f"the header of a frame must be a JSON object, got {type(header).__name__}.")
    return header


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def whole_number(header: Mapping[str, Any], name: str) -> int:
    """Return the entry ``name`` of a header; raise ``CommandRefused`` unless it is an integer from 0 to 2^53."""
    value = header.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**53:
        raise CommandRefused(f"{name} must be an integer from 0 to 2^53, got {repr(value)[:40]}.")
    return value
