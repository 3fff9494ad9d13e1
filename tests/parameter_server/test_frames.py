"""Frames: valid ones, and those rejected before they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.parameter_server.frames import (
    LENGTHS,
    MAX_HEADER,
    CommandRefused,
    WireError,
    frame,
    lengths,
    parsed_header,
    whole_number,
)
from tests.support.errors import raises_naming

NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9))


@given(st.dictionaries(st.text(max_size=9), NUMBERS, max_size=9), st.binary(max_size=99))
def test_there_and_back(header: dict, body: bytes) -> None:
    data = frame(header, body)
    num_header, num_body = lengths(data[: LENGTHS.size])
    end = LENGTHS.size + num_header
    assert parsed_header(data[LENGTHS.size : end]) == header
    assert (data[end:], num_body) == (body, len(body))


def test_a_frame_by_hand() -> None:
    assert frame({"a": 1}, b"xy") == b"\x07\0\0\0\x02\0\0\0" + b'{"a":1}xy'


@pytest.mark.parametrize("header", [{"x": float("nan")}, {"x": "y" * MAX_HEADER}])
def test_a_header_that_cannot_be_sent(header: dict) -> None:
    with raises_naming(ValueError, "JSON"):
        frame(header)


@pytest.mark.parametrize("size", [0, 1, MAX_HEADER + 1, 2**32 - 1])
def test_lengths_of_headers(size: int) -> None:
    with raises_naming(WireError, "16,384 bytes", "JSON"):
        lengths(LENGTHS.pack(size, 0))


@pytest.mark.parametrize(
    "data", [b"[1]", b"7", b"{", b"\xff\xfe", b'{"a":NaN}', b'{"a":' + b"[" * 9000, b"null"], ids=lambda x: str(x[:9])
)
def test_a_header_that_is_no_object(data: bytes) -> None:
    with raises_naming(WireError, "JSON object"):
        parsed_header(data)


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "7", 2**53 + 1, [1]])
def test_whole_numbers(value: Any) -> None:
    assert whole_number(json.loads('{"n":9007199254740992}'), "n") == 2**53
    with raises_naming(CommandRefused, "n must be an integer from 0"):
        whole_number({"n": value}, "n")
