"""RLX byte for byte, in any pieces; any input results in messages or ``ProtocolError``."""

from __future__ import annotations

import json
import random
import struct
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evorl.serving.protocol_vectors import vectors_text
from evorl.serving.rlx import FrameReader, Image, Limits, ProtocolError, decode, encode, frame
from tests.support.errors import raises_naming

VECTORS = json.loads(vectors_text())["messages"][:11]  # the vectors of RELAAX
PAYLOADS = [bytes.fromhex(vector["wire"]) for vector in VECTORS]
UPDATE = {"command": "update", "reward": None}
MESSAGES: list[dict[str, Any]] = [  # in the order of the vectors
    {"command": "init", "exploit": False},
    {"response": "ready"},
    {"command": "update", "reward": 1.0, "state": [0.5, -2.0], "terminal": False},
    {**UPDATE, "state": [], "terminal": False},
    {"response": "action", "data": 3},
    {"response": "action", "data": np.float32([0.25, -1])},
    {**UPDATE, "state": np.float64([[1, 2], [3, 4]]), "terminal": True},
    {"command": "reset"},
    {"response": "done"},
    {"response": "error", "message": "can't reset agent"},
    {"command": "update_metrics", "data": [{"method": "scalar", "name": "r", "y": 1.5, "x": None}]},
]


def payload(*parts: bytes) -> bytes:
    """Return a message of version 1 with one encoded value at the key ``k``."""
    return struct.pack("<II", 1, 1) + b"k" + b"".join(parts)


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def text(message: str) -> bytes:
    return u32(len(message.encode())) + message.encode()


def same(a: Any, b: Any) -> bool:
    """Return True for equal values with equal types, dtypes and shapes; NaN equals itself."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.parametrize(
    ("vector", "message"), list(zip(VECTORS, MESSAGES, strict=True)), ids=[v["name"] for v in VECTORS]
)
def test_vectors_both_ways(vector: dict[str, str], message: dict[str, Any]) -> None:
    assert encode(message).hex() == vector["wire"]
    assert frame(encode(message)).hex() == vector["framed"]
    (read,) = FrameReader().feed(bytes.fromhex(vector["framed"]))
    assert same(decode(read), message)
    assert encode(decode(read)) == read


NUMBERS = st.sampled_from("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split())
ARRAYS = NUMBERS.flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9) | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=5))
def test_values_come_back_as_they_were(message: dict[str, Any]) -> None:
    assert same(decode(encode(message)), message)
    assert same(decode(memoryview(encode(message))), message)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (2**31 - 1, b"\2" + struct.pack("<i", 2**31 - 1)),
        (-(2**31), b"\2" + struct.pack("<i", -(2**31))),
        (2**31, b"\x0a" + struct.pack("<q", 2**31)),
        (np.int32(3), b"\2\3\0\0\0"),
        (np.uint8(3), b"\2\3\0\0\0"),
        (np.int64(3), b"\x0a\3\0\0\0\0\0\0\0"),
        (np.argmax([0, 1]), b"\x0a\1\0\0\0\0\0\0\0"),
        (np.float32(0.5), b"\4" + struct.pack("<d", 0.5)),
        (np.float64(0.5), b"\4" + struct.pack("<d", 0.5)),
        (np.bool_(True), b"\5\1"),
        ((1, "a"), b"\x08\2\0\0\0\2\1\0\0\0\3\1\0\0\0a"),
        ({"a": {}}, b"\x0b\1\0\0\0\1\0\0\0a\x0b\0\0\0\0"),
        (np.array([[1, 2]], ">i2"), b"\7" + text("int16") + u32(2, 1, 2, 4) + b"\1\0\2\0"),
        (np.arange(4, dtype="u1").reshape(2, 2).T, b"\7" + text("uint8") + u32(2, 2, 2, 4) + b"\0\2\1\3"),
    ],
)
def test_types_on_the_wire(value: Any, wire: bytes) -> None:
    assert encode({"k": value}) == payload(wire)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (1j, ("type for complex",)),
        (b"raw", ("type for bytes",)),
        ({1, 2}, ("type for set",)),
        (np.array(["a"]), ("array", "<U1")),
        (np.array([None]), ("array", "object")),
        (np.complex64(1), ("array", "complex64")),
        ({1: 2}, ("keys", "strings", "got 1")),
    ],
)
def test_what_the_protocol_lacks_is_refused_in_words(value: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(TypeError, *parts):
        encode({"k": [value]})


def test_an_integer_beyond_64_bits_and_an_endless_list_are_refused() -> None:
    with raises_naming(OverflowError, "string"):
        encode({"k": 2**63})
    with raises_naming(OverflowError, "string"):
        encode({"k": np.uint64(2**64 - 1)})
    endless: list[Any] = []
    endless.append(endless)
    with raises_naming(TypeError, "16 levels"):
        encode({"k": endless})


def test_values_that_only_others_send() -> None:
    assert decode(payload(b"\0")) == {"k": None}
    assert decode(payload(b"\x09\xff\xff\xff\xff")) == {"k": 2**32 - 1}
    assert decode(payload(b"\5\2")) == {"k": False}
    assert decode(payload(b"\5\1", text("k"), b"\1")) == {"k": None}, "of two equal keys the last one counts"
    assert decode(payload(b"\7", text("bool"), u32(1, 2, 2), b"\1\2"))["k"].tobytes() == b"\1\0"


def test_arrays_are_read_only() -> None:
    state = decode(encode({"state": np.zeros(3)}))["state"]
    with raises_naming(ValueError, "read-only"):
        state[0] = 1


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4), ("CMYK", 4), ("HSV", 3)])
def test_pictures_are_numbers_between_0_and_1(mode: str, channels: int) -> None:
    data = bytes(range(6 * channels))
    message = {"state": Image(mode, 3, 2, data)}
    assert encode(message) == struct.pack("<II", 1, 5) + b"state\6" + text(mode) + u32(3, 2, len(data)) + data
    state = decode(encode(message))["state"]
    assert state.dtype == np.float32
    expected = np.frombuffer(data, "u1").reshape((2, 3, channels) if channels > 1 else (2, 3)) / 255
    np.testing.assert_allclose(state, expected, rtol=1e-6)


@pytest.mark.parametrize(("mode", "dtype"), [("P", "uint8"), ("I", "int32"), ("F", "float32"), ("I;16", "uint16")])
def test_pictures_of_other_modes_keep_their_numbers(mode: str, dtype: str) -> None:
    pixels = np.arange(6, dtype=dtype).reshape(2, 3)
    assert same(decode(encode({"state": Image(mode, 3, 2, pixels.tobytes())}))["state"], pixels)


LISTS_17 = b"".join([b"\x08", u32(1)] * 17) + b"\1"
BROKEN = {
    "empty": (b"", "truncated"),
    "version 2": (u32(2), "version 2", "version 1"),
    "unknown type": (payload(b"\x0c"), "unknown type 12"),
    "no value": (payload(), "1 bytes", "0 are left"),
    "no boolean": (payload(b"\5"), "truncated"),
    "key that is long": (u32(1, 2**32 - 1) + b"k", "4294967295 bytes", "1 are left"),
    "UTF-8": (payload(b"\3", u32(1), b"\xff"), "UTF-8"),
    "list that is long": (payload(b"\x08", u32(2**32 - 1), b"\1"), "truncated"),
    "dict that is long": (payload(b"\x0b", u32(2), b"\0\0\0\0\1\0\0\0\0"), "10 bytes", "9 are left"),
    "17 lists": (payload(LISTS_17), "16 levels"),
    "9 axes": (payload(b"\7", text("int8"), u32(9, *[1] * 9, 1), b"\0"), "9 axes", "at most 8"),
    "objects": (payload(b"\7", text("object"), u32(1, 1, 8), bytes(8)), "'object'", "at most 8", "bool, int8"),
    "complex": (payload(b"\7", text("complex64"), u32(1, 1, 8), bytes(8)), "'complex64'"),
    "shape and bytes": (payload(b"\7", text("int16"), u32(1, 2, 2), b"\0\0"), "shape (2,)", "2 bytes"),
    "shape that overflows": (payload(b"\7", text("int8"), u32(4, *[2**16] * 4, 0)), "0 bytes"),
    "shape of nothing": (payload(b"\7", text("int8"), u32(3, 0, 2**32 - 1, 2**32 - 1, 0)), "too large"),
    "bytes cut": (payload(b"\7", text("int8"), u32(1, 4, 4), b"\0"), "4 bytes", "1 are left"),
    "mode": (payload(b"\6", text("JPEG"), u32(1, 1, 1), b"\0"), "mode 'JPEG'", "L, RGB"),
    "pixels": (payload(b"\6", text("L"), u32(2**32 - 1, 2**32 - 1, 1), b"\0"), "1 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_message_is_refused_in_words(name: str) -> None:
    broken, *parts = BROKEN[name]
    with raises_naming(ProtocolError, *parts):
        decode(broken)


def test_limits_are_those_that_are_given() -> None:
    limits = Limits(max_depth=1, max_axes=1, max_values=3)
    assert decode(encode({"k": [1, 2]}), limits) == {"k": [1, 2]}
    for beyond in ([[]], [1, 2, 3], np.zeros((1, 1))):
        with pytest.raises(ProtocolError):
            decode(encode({"k": beyond}), limits)
    sixteen: list[Any] = []
    for _ in range(15):
        sixteen = [sixteen]
    assert decode(encode({"k": sixteen})) == {"k": sixteen}
    empty_lists = b"\x08" + u32(2**20) + (b"\x08" + u32(0)) * 2**20
    with raises_naming(ProtocolError, "524288 values"):
        decode(payload(empty_lists))


def outcome(broken: bytes) -> bool:
    """Return True for a message, False for ProtocolError; other exceptions fail the test."""
    try:
        return isinstance(decode(broken), dict)
    except ProtocolError:
        return False


@pytest.mark.parametrize("whole", PAYLOADS, ids=[v["name"] for v in VECTORS])
def test_every_truncation_of_every_vector(whole: bytes) -> None:
    complete = [size for size in range(len(whole)) if outcome(whole[:size])]
    # A cut between two pairs gives a shorter message: the first is right after the version.
    keys = len(decode(whole))
    assert len(complete) == keys
    assert complete[0] == 4


def mutated(whole: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some of them changed, removed, doubled or replaced by large numbers."""
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(4)
        if how == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 1:
            del data[at : at + rng.randint(1, 8)]
        elif how == 2:
            data[at:at] = data[at : at + rng.randint(1, 16)]
        else:
            data[at : at + 4] = u32(rng.choice([0, 1, 2**16, 2**31, 2**32 - 1]))
    return bytes(data)


def test_mutations_give_a_message_or_protocol_error_in_little_memory() -> None:
    rng = random.Random(0)
    rich = encode({"a": [1, 2.5, None, {"b": "c"}], "p": Image("L", 2, 2, b"abcd"), "n": np.ones((2, 3), "f4")})
    broken = [mutated(rng.choice([*PAYLOADS, rich]), rng) for _ in range(20_000)]
    outcome(rich)  # loads everything that is loaded at first use
    tracemalloc.start()
    try:
        whole = sum(map(outcome, broken))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 500 < whole < 15_000, "the mutations are all harmless, or all alike"
    assert peak < 2**20, f"{peak} bytes for messages of {max(map(len, broken))} at most"


@given(st.binary(max_size=60))
def test_random_bytes_give_a_message_or_protocol_error(data: bytes) -> None:
    outcome(u32(1) + data)
    outcome(data)


@given(st.lists(st.binary(max_size=12), max_size=5), st.lists(st.integers(1, 7), min_size=1, max_size=50))
def test_frames_in_any_pieces(payloads: list[bytes], sizes: list[int]) -> None:
    stream, reader, read = b"".join(map(frame, payloads)), FrameReader(), []
    for size in [*sizes, len(stream)]:
        read += reader.feed(stream[:size])
        stream = stream[size:]
    assert read == payloads
    assert str(reader.end()) == "connection closed"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"x", "can't receive, wrong net string format"),
        (b":", "can't receive, wrong net string format"),
        (b"5x:", "can't receive, wrong net string format"),
        (b"-1:", "can't receive, wrong net string format"),
        (b"1234567890", "can't receive, wrong net string format"),
        (b"01:a,", "can't receive, wrong net string format"),
        (b"00:,", "can't receive, wrong net string format"),
        ("٣:abc,".encode(), "can't receive, wrong net string format"),
        (b"101:", "net string too long"),
        (b"999999999:", "net string too long"),
        (b"2:abc", "wrong net string format"),
        (b"0:x", "wrong net string format"),
    ],
)
def test_what_is_no_netstring_is_refused_now_and_later(stream: bytes, words: str) -> None:
    at_once, by_bytes = FrameReader(max_frame=100), FrameReader(max_frame=100)
    assert at_once.feed(b"1:a,") == by_bytes.feed(b"1:a,") == [b"a"]
    for _ in range(2):
        with pytest.raises(ProtocolError) as error:
            at_once.feed(stream)
        assert words in str(error.value)
    with pytest.raises(ProtocolError) as error:
        for byte in stream:
            by_bytes.feed(bytes([byte]))
    assert words in str(error.value)


def test_the_end_of_the_stream_in_the_words_of_where_it_is() -> None:
    reader = FrameReader()
    assert str(reader.end()) == "connection closed"
    assert reader.feed(b"3") == []
    assert str(reader.end()) == "connection closed"
    assert reader.feed(b":a") == []
    assert str(reader.end()) == "connection closed within a message"


def test_frames_too_long_to_send() -> None:
    assert frame(bytes(10), max_frame=10) == b"10:" + bytes(10) + b","
    with raises_naming(ProtocolError, "can't send", "11 bytes", "at most 10"):
        frame(bytes(11), max_frame=10)


def test_a_large_frame_in_small_pieces_takes_time_in_proportion() -> None:
    def seconds(size: int) -> float:
        stream, reader, read = frame(bytes(size)), FrameReader(), []
        start = time.process_time()
        for at in range(0, len(stream), 4096):
            read += reader.feed(stream[at : at + 4096])
        assert [len(one) for one in read] == [size]
        return time.process_time() - start

    # Copying all received bytes at every piece would move 34 GB for the large one: seconds.
    assert seconds(16 * 2**20) < 1.0
