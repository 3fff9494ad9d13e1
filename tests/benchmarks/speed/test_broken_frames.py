"""Invalid frames have the faults of their kind, and are equal for equal seeds."""

import json

import numpy as np
import pytest

from benchmarks.speed.broken_frames import CARRIERS, BrokenFrames, framed, packed, valid_messages, websocket_frame
from benchmarks.speed.wire_load import as_netstring, as_websocket_frame
from evorl.serving.packed_messages import unpack_message
from evorl.serving.rlx import FrameReader, ProtocolError, decode

STATE = np.linspace(0.0, 1.0, 17, dtype=np.float32)


def is_read(carrier: str, payload: bytes) -> bool:
    """Return True if the codec can decode the payload."""
    try:
        (decode if carrier == "rlx" else unpack_message if carrier == "binary" else json.loads)(payload)
    except (ProtocolError, ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_they_are_made_of_is_right(carrier: str) -> None:
    for message in valid_messages(STATE):
        assert is_read(carrier, packed(carrier, message))


def test_frames_of_websocket() -> None:
    for payload in (b"", b"abc", bytes(125), bytes(126), bytes(5000)):
        assert websocket_frame(payload, 2) == as_websocket_frame(payload)
    assert websocket_frame(b"abc", 1, declared_size=2**40)[:10] == b"\x81\xff" + (2**40).to_bytes(8, "big")
    assert websocket_frame(bytes(2**16), 2)[:10] == b"\x82\xff" + (2**16).to_bytes(8, "big")
    assert framed("rlx", b"abc") == as_netstring(b"abc") == b"3:abc,"


@pytest.mark.parametrize("carrier", CARRIERS)
def test_they_are_drawn_by_their_seed(carrier: str) -> None:
    first, second, other = (
        [frames.draw(carrier) for _ in range(30)]
        for frames in (BrokenFrames(STATE, 1), BrokenFrames(STATE, 1), BrokenFrames(STATE, 2))
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize("kind", BrokenFrames(STATE, 0).kinds)
def test_most_are_no_frame_with_a_message(kind: str) -> None:
    """Over RLX, most broken frames contain no message; wrong types and wrong order are valid but
    meaningless messages.
    """
    frames, broken = BrokenFrames(STATE, 3), 0
    for _ in range(300):
        try:
            payloads = FrameReader().feed(frames.of_kind(kind, "rlx"))
            broken += not payloads or not all(is_read("rlx", payload) for payload in payloads)
        except ProtocolError:
            broken += 1
    senseless = kind in ("wrong types", "out of turn")
    assert broken == 0 if senseless else broken > 100, broken
