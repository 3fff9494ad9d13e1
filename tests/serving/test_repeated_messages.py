"""Messages that repeat their layout are read like all others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evorl.serving import repeated_messages
from evorl.serving.repeated_messages import MAX_ATTEMPTS, MAX_LAYOUTS, RepeatedMessages, layout_of
from evorl.serving.rlx import Limits, ProtocolError, decode, encode
from tests.support.errors import raises_naming


def wire(message: dict[str, Any]) -> bytes:
    """Encode a message: equal bytes for equal messages only, NaN included."""
    return encode(message)


def outcome(read: Callable[[bytes], dict[str, Any]], payload: bytes) -> bytes | str:
    try:
        return wire(read(payload))
    except ProtocolError as error:
        return str(error)


def update(number: float, **others: Any) -> dict[str, Any]:
    state = np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(number)
    return {"command": "update", "reward": number, "state": state, "terminal": False, **others}


@pytest.fixture
def full_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the payloads that were decoded completely."""
    seen: list[bytes] = []

    def noted(payload: bytes, limits: Limits) -> dict[str, Any]:
        seen.append(payload)
        return decode(payload, limits)

    monkeypatch.setattr(repeated_messages, "decode", noted)
    return seen


@pytest.mark.parametrize(
    "values",
    [
        [0.5, -1.0, float("inf")],
        [1, 2, -3],
        [2**40, 2**41, 2**42],
        [True, False, True],
        [[0.5, 1.5], [2.5, -1.0], [0.0, 0.25]],
        [np.array([n, 2.5]) for n in (1, 2, 3)],
        [np.array([[n], [255]], np.uint8) for n in (1, 2, 3)],
        [np.zeros((0, 3))] * 3,
        [np.array(n, np.float32) for n in (1, 2, 3)],
        [None, None, None],
        ["same", "same", "same"],
    ],
    ids=lambda values: str(type(values[0]).__name__),
)
def test_only_the_first_of_a_layout_is_read_in_full(values: list[Any], full_reads: list[bytes]) -> None:
    messages = RepeatedMessages(Limits())
    for value in values:
        message = {"command": "update", "value": value, "naïve": 0.5}
        read = messages.decode(encode(message))
        assert wire(read) == wire(decode(encode(message)))
        assert type(read["value"]) is type(decode(encode(message))["value"])
    assert len(full_reads) == 1


def test_what_differs_in_more_than_numbers_is_read_in_full(full_reads: list[bytes]) -> None:
    messages = RepeatedMessages(Limits())
    sent = [update(1.0), update(2.0), {**update(3.0), "command": "updote"}, update(4.0), update(5.0)]
    read = [messages.decode(encode(message)) for message in sent]
    assert [wire(message) for message in read] == [wire(message) for message in sent]
    assert len(full_reads) == 3  # the other word, and all that follows


def test_messages_do_not_share_what_may_be_changed() -> None:
    messages = RepeatedMessages(Limits())
    payload = encode({"data": [1.0, 2.0]})
    first, second, third = (messages.decode(payload) for _ in range(3))
    second["data"].append(3.0)
    second["more"] = 1
    assert first == third == {"data": [1.0, 2.0]}


@pytest.mark.parametrize(
    "message",
    [{"a": {}}, {"a": [1.0, 2]}, {"a": [[1.0]]}, {"a": np.array([True])}, {"a": [0.5] * 1000}],
    ids=["mapping", "mixed", "nested", "truths", "long"],
)
def test_values_that_are_not_simple_have_no_layout(message: dict[str, Any], full_reads: list[bytes]) -> None:
    payload = encode(message)
    assert layout_of(payload, decode(payload)) is None
    messages = RepeatedMessages(Limits())
    assert wire(messages.decode(payload)) == wire(messages.decode(payload)) == payload
    assert len(full_reads) == 2


def test_keys_that_come_twice_have_no_layout() -> None:
    payload = encode({"a": 1.0}) + encode({"b": 2.0, "a": 3.0})[4:]
    assert decode(payload) == {"a": 3.0, "b": 2.0}
    assert layout_of(payload, decode(payload)) is None


def test_a_connection_is_remembered_within_bounds(full_reads: list[bytes]) -> None:
    messages = RepeatedMessages(Limits())
    for size in range(2 * MAX_LAYOUTS):
        messages.decode(encode({"a" * size: 1.0}))
    full_reads.clear()
    for size in range(2 * MAX_LAYOUTS):
        messages.decode(encode({"a" * size: 2.0}))
    assert len(full_reads) == MAX_LAYOUTS
    for number in range(2 * MAX_ATTEMPTS):  # texts of equal length that never repeat
        assert messages.decode(encode({"a": f"{number:04}"})) == {"a": f"{number:04}"}


MESSAGES = st.dictionaries(
    st.text(max_size=4),
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=3)
    | st.lists(st.floats(), max_size=3) | st.lists(st.integers(0, 9) | st.floats(), max_size=3),
    max_size=4,
)  # fmt: skip


@given(st.lists(MESSAGES, min_size=1, max_size=3), st.lists(st.tuples(st.integers(4), st.integers(0, 255)), max_size=4))
def test_any_bytes_are_read_as_by_decode(sent: list[dict[str, Any]], changes: list[tuple[int, int]]) -> None:
    messages = RepeatedMessages(Limits())
    for message in sent:
        payload = encode(message)
        messages.decode(payload)
        changed = bytearray(payload)
        for place, byte in changes:
            changed[place % len(changed)] = byte
        assert outcome(messages.decode, bytes(changed)) == outcome(decode, bytes(changed))


def test_a_version_that_is_none_is_refused_after_one_that_is() -> None:
    messages = RepeatedMessages(Limits())
    payload = encode(update(1.0))
    messages.decode(payload)
    with raises_naming(ProtocolError, "version 2"):
        messages.decode(struct.pack("<I", 2) + payload[4:])
