"""The codec encodes and decodes the test vectors of the protocol."""

from __future__ import annotations

import pytest

from evorl.serving import rlx
from evorl.serving.conformance import is_same_value
from evorl.serving.protocol_vectors import Refused, Vector, message_vectors, refused_vectors, untagged
from evorl.serving.rlx import FrameReader, ProtocolError, decode, encode, frame

MESSAGES, REFUSED = message_vectors(), refused_vectors()


@pytest.mark.parametrize("vector", MESSAGES, ids=[vector.name for vector in MESSAGES])
def test_messages_both_ways(vector: Vector) -> None:
    assert frame(vector.wire) == vector.framed
    (payload,) = FrameReader().feed(vector.framed)
    message = decode(payload)
    assert list(message) == list(vector.message)
    assert is_same_value(vector.message, message)
    if not vector.read_only:
        assert encode(vector.message) == vector.wire


@pytest.mark.parametrize("vector", REFUSED, ids=[vector.name for vector in REFUSED])
def test_frames_that_a_reader_refuses(vector: Refused) -> None:
    with pytest.raises(ProtocolError):
        for payload in FrameReader().feed(vector.framed):
            decode(payload)


def test_names_are_unique_and_every_type_occurs() -> None:
    names = [vector.name for vector in (*MESSAGES, *REFUSED)]
    assert len(set(names)) == len(names)
    kinds = {vector.wire[vector.wire.index(b"data") + 4] for vector in MESSAGES if vector.name.startswith("answer-")}
    assert kinds == set(range(rlx.DICT + 1))
    dtypes = {str(getattr(vector.message.get("data"), "dtype", "")) for vector in MESSAGES} - {""}
    assert dtypes == set(rlx._NAMES.split())


def test_a_tagged_value() -> None:
    assert untagged({"LIST": [{"INT4": 3}, {"DICT": {"a": {"NULL": None}}}]}) == [3, {"a": None}]
