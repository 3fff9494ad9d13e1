"""MessagePack with arrays: round trips, and errors for corrupted or large messages."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.serving.client import ProtocolError
from evorl.serving.packed_messages import MAX_AXES, pack_message, unpack_message
from tests.support.errors import raises_naming

msgpack = pytest.importorskip("msgpack", reason="clients over WebSocket need the extra serve")
DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)], ids=str)
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = unpack_message(pack_message({"state": array, "others": [array[..., None]]}))
    assert back["state"].dtype == array.dtype
    np.testing.assert_array_equal(back["state"], array)
    np.testing.assert_array_equal(back["others"][0], array[..., None])


def test_arrays_that_do_not_lie_in_order_come_back() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    np.testing.assert_array_equal(unpack_message(pack_message(array)), array)


def test_messages_come_back() -> None:
    message = {"command": "init", "n": 3, "x": 1.5, "none": None, "yes": True, "list": [1, "a", {"b": b"c"}]}
    assert unpack_message(pack_message(message)) == message
    assert unpack_message(pack_message([message, message])) == [message, message]
    assert unpack_message(pack_message({"x": np.float32(0.5), "n": np.int64(3), "b": np.bool_(True)})) == {
        "x": 0.5,
        "n": 3,
        "b": True,
    }


def test_keys_may_be_bytes() -> None:
    """Keys may be bytes, as libraries of other languages and older ones write them."""
    array = {b"__ndarray__": True, b"data": np.ones(2, np.float32).tobytes(), b"dtype": b"<f4", b"shape": [2]}
    np.testing.assert_array_equal(unpack_message(msgpack.packb({"state": array}))["state"], np.ones(2, np.float32))


def array_map(**changes: Any) -> bytes:
    array = {"__ndarray__": True, "data": bytes(8), "dtype": "<f4", "shape": [2]} | changes
    return msgpack.packb({"state": array})


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (array_map(dtype="O"), ("dtype", "'O'")),
        (array_map(dtype="f4,f4"), ("dtype",)),
        (array_map(dtype="(2,)f4"), ("dtype",)),
        (array_map(dtype="M8"), ("dtype",)),
        (array_map(dtype="f3"), ("dtype",)),
        (array_map(dtype=None), ("dtype",)),
        (array_map(shape=[3]), ("float32[3]", "12 bytes")),
        (array_map(shape=[2**40, 2**40]), (f"{2**82} bytes",)),
        (array_map(shape=[-2]), ("shape",)),
        (array_map(shape=[2.0]), ("shape",)),
        (array_map(shape=[True, 2]), ("shape",)),
        (array_map(shape="2"), ("shape", MAX_AXES)),
        (array_map(shape=[1] * MAX_AXES + [2]), ("shape", MAX_AXES)),
        (array_map(data="x" * 8), ("8 bytes",)),
        (msgpack.packb({3: 4}), ("keys", "got 3")),
        (msgpack.packb({"x": msgpack.ExtType(5, b"abc")}), ("extension 5",)),
        (msgpack.packb({"x": msgpack.Timestamp(1, 2)}), ("timestamp",)),
        (msgpack.packb({"x": [msgpack.Timestamp(1, 2)]}), ("timestamp",)),
        (b"", ("MessagePack",)),
        (b"\xc1", ("MessagePack",)),
        (b"\x81\xa1a", ("MessagePack",)),
        (msgpack.packb(1) * 2, ("MessagePack",)),
        (b"\xdd\xff\xff\xff\xff", ("MessagePack",)),  # a list of four billion
        (b"\xc6\xff\xff\xff\xff", ("MessagePack",)),
        (b"\x91" * 100_000, ("MessagePack",)),
        (b"\x81\x90\x01", ("MessagePack",)),  # a map whose key is a list
    ],
)
def test_what_is_none_is_told(data: bytes, parts: tuple[object, ...]) -> None:
    with raises_naming(ProtocolError, *parts):
        unpack_message(data)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_a_message_or_none(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        unpack_message(data)


values = st.recursive(
    st.none() | st.integers(-5, 2**63) | st.text(max_size=4) | st.binary(max_size=9) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(dtype=values | st.text(alphabet="<>|=fiub?0123456789,()O", max_size=6), shape=values, data=values)
@settings(max_examples=300)
def test_any_claim_of_an_array_is_one_or_none(dtype: Any, shape: Any, data: Any) -> None:
    packed = array_map(dtype=dtype, shape=shape, data=data)
    try:
        array = unpack_message(packed)["state"]
    except ProtocolError:
        return
    assert isinstance(array, np.ndarray)
    assert array.nbytes == len(data)


@pytest.mark.parametrize("value", [object(), np.array(["a"]), {1, 2}, 1j], ids=["object", "text", "set", "complex"])
def test_what_is_no_message_is_not_packed(value: Any) -> None:
    with raises_naming(TypeError, "sent", type(value).__name__):
        pack_message({"x": value})


def test_half_of_a_surrogate_pair_is_escaped() -> None:
    """An unpaired surrogate, as in a quotation of JSON text, is escaped."""
    assert unpack_message(pack_message({"message": "got \ud800"})) == {"message": r"got \ud800"}
