"""RLX, the protocol between simulators and servers: encoding of messages, and their framing in a byte stream.

``encode`` and ``decode`` convert between messages and payloads; ``frame`` wraps a payload in a netstring, and
``FrameReader`` splits a stream into payloads. The page "Clients" of the guide specifies both byte by byte. This file is
half of the single-file client (``evorl.serving.client_copy``), so it requires only Python 3.8 and its standard library;
NumPy is used if it is installed.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
_VERSION = struct.pack("<I", VERSION)
NONE, NULL, INT4, STRING, DOUBLE, BOOLEAN, IMAGE, NDARRAY, LIST, UINT4, INT64, DICT = range(12)
_FIXED = {kind: struct.Struct("<" + code) for kind, code in ((INT4, "i"), (DOUBLE, "d"), (UINT4, "I"), (INT64, "q"))}
# Dtypes of arrays, with the format characters of the module struct.
_NAMES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64"
_DTYPES: dict[str, str] = dict(zip(_NAMES.split(), "?bBhHiIqQefd"))
_SCALED = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "LAB": 3, "HSV": 3}  # bytes per pixel, scaled to [0, 1]
_MODES = {mode: ("uint8", channels) for mode, channels in {**_SCALED, "P": 1, "LA": 2}.items()}
_MODES.update({"I;16": ("uint16", 1), "I": ("int32", 1), "F": ("float32", 1)})


class ProtocolError(Exception):
    """Raised for received bytes that are not RLX or exceed a limit, and for messages that are too large to send."""


class ConnectionClosed(ProtocolError):
    """Raised when the peer has closed the connection."""


@dataclass(frozen=True)
class Limits:
    """Limits of received messages, which prevent the peer from exhausting the memory."""

    max_frame: int = 16 * 2**20  # maximum bytes of a payload
    max_depth: int = 16  # maximum nesting depth of lists and dicts
    max_axes: int = 8  # maximum number of axes of an array
    max_values: int = 2**19  # maximum number of values, with nested ones; decoded, each takes ten times its bytes


@dataclass(frozen=True)
class Image:
    """Image: Pillow mode (``L``, ``RGB``, ...), width and height in pixels, and bytes of the rows, top row first."""

    mode: str
    width: int
    height: int
    data: bytes


@functools.lru_cache(maxsize=1)
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


@functools.lru_cache(maxsize=64)
def _little_endian(dtype: Any) -> Any:
    return _numpy().dtype(dtype).newbyteorder("<")


@functools.lru_cache(maxsize=64)
def _name(dtype: Any) -> str:
    return dtype.name if dtype.name in _DTYPES else ""


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a payload: the version, then keys and values in order.

    Raises:
        TypeError: the protocol has no type for a value, a key is not a string, or the nesting is too deep.
        OverflowError: an integer exceeds 64 bits.
    """
    return _VERSION + _pairs(message, 0)


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def _pairs(message: Mapping[str, Any], depth: int) -> bytes:
    return b"".join([_key(key) + _value(value, depth) for key, value in message.items()])


@functools.lru_cache(maxsize=1024)
def _key(key: Any) -> bytes:
    if not isinstance(key, str):
        raise TypeError(f"keys must be strings, got {key!r}")
    return _text(key)


@functools.lru_cache(maxsize=1024)
def _word(word: str) -> bytes:
    return bytes((STRING,)) + _text(word)


# Encoders of the most frequent types.
_ENCODERS: dict[type, Any] = {
    type(None): lambda value: bytes((NULL,)),
    bool: lambda value: bytes((BOOLEAN, value)),
    float: functools.partial(struct.Struct("<Bd").pack, DOUBLE),
    str: lambda value: _word(value) if len(value) < 32 else bytes((STRING,)) + _text(value),
}


def _value(value: Any, depth: int) -> bytes:
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if isinstance(value, float):
        return struct.pack("<Bd", DOUBLE, value)
    if isinstance(value, int):
        return _integer(value, INT4 if -(2**31) <= value < 2**31 else INT64)
    if isinstance(value, str):
        return bytes((STRING,)) + _text(value)
    if isinstance(value, Image):
        size = struct.pack("<3I", value.width, value.height, len(value.data))
        return bytes((IMAGE,)) + _text(value.mode) + size + value.data
    if isinstance(value, (list, tuple)):
        return _items(value, depth)
    if isinstance(value, Mapping):
        _refuse_beyond(depth)
        return struct.pack("<BI", DICT, len(value)) + _pairs(value, depth + 1)
    return _numpy_value(value)


def _items(values: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    _refuse_beyond(depth)
    count = len(values)
    if 0 < count < 256 and set(map(type, values)) == {float}:  # such as an action: packed in one call
        items: list[Any] = [DOUBLE] * (2 * count)
        items[1::2] = values
        return _doubles(count).pack(LIST, count, *items)
    return struct.pack("<BI", LIST, count) + b"".join([_value(item, depth + 1) for item in values])


def _refuse_beyond(depth: int) -> None:
    if depth >= Limits.max_depth:
        raise TypeError(f"lists and dicts are nested more than {Limits.max_depth} levels deep, which receivers reject")


@functools.lru_cache(maxsize=256)
def _doubles(count: int) -> struct.Struct:
    return struct.Struct("<BI" + "Bd" * count)


def _integer(value: int, kind: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} exceeds the 64 bits of an RLX integer: send it as a string")
    return bytes((kind,)) + _FIXED[kind].pack(value)


def _numpy_value(value: Any) -> bytes:
    np: Any = sys.modules.get("numpy")  # the value cannot be a NumPy value unless NumPy was imported
    if np and isinstance(value, np.ndarray) and _name(value.dtype):
        raw = value.astype(_little_endian(value.dtype), copy=False).tobytes()
        shape = struct.pack(f"<{value.ndim + 2}I", value.ndim, *value.shape, len(raw))
        return bytes((NDARRAY,)) + _text(_name(value.dtype)) + shape + raw
    if np and isinstance(value, np.int64):
        return _integer(int(value), INT64)
    for kind, plain in ((np.bool_, bool), (np.integer, int), (np.floating, float)) if np else ():
        if isinstance(value, kind):
            return _value(plain(value), 0)
    name = f"an array of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
    has = "None, bool, int, float, str, list, tuple, dict, Image, and NumPy's numbers and arrays of them"
    raise TypeError(
        f"RLX has no type for {name}, only for {has}: convert the value, for example by numpy.asarray or .tolist()"
    )


def decode(payload: bytes | memoryview, limits: Limits = Limits()) -> dict[str, Any]:
    """Decode a payload; every length is compared with the remaining bytes before memory is allocated.

    Arrays become read-only NumPy arrays; images become arrays ``(height, width[, channels])``, float32 in [0, 1], or
    unscaled in the mode's dtype (P, LA, I;16, I, F). Without NumPy: nested lists (``[]`` if empty) and ``Image``.

    Raises:
        ProtocolError: the payload is invalid or exceeds the limits.
    """
    body = _Body(bytes(payload), limits)
    version, message = body.size(), {}
    if version != VERSION:
        raise ProtocolError(f"unsupported protocol version {version}: expected version {VERSION}")
    while body.position < len(body.data):
        key = body.text()
        message[key] = body.value(0)
    return message


class _Body:
    """Sequential reader of a payload."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data, self.limits, self.position, self.num_values = data, limits, 0, 0

    def need(self, size: int) -> None:
        left = len(self.data) - self.position
        if size > left:
            raise ProtocolError(f"the message is truncated: {size} bytes were announced, {left} are left")

    def take(self, size: int) -> bytes:
        raw = self.data[self.position : self.position + size]
        if len(raw) < size:
            self.need(size)
        self.position += size
        return raw

    def size(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def text(self) -> str:
        try:
            return self.take(self.size()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string is not valid UTF-8: {error.reason}") from None

    def value(self, depth: int) -> Any:
        self.num_values += 1
        if self.num_values > self.limits.max_values:
            raise ProtocolError(f"the message has more than {self.limits.max_values} values: send numbers as an array")
        kind = self.take(1)[0]
        if kind in _FIXED:
            return _FIXED[kind].unpack(self.take(_FIXED[kind].size))[0]
        if kind == STRING:
            return self.text()
        if kind == BOOLEAN:
            return self.take(1) == b"\1"
        if kind <= NULL:
            return None
        if kind == NDARRAY:
            return self.array()
        if kind == IMAGE:
            return self.image()
        if kind > DICT:
            raise ProtocolError(f"unknown type {kind} of a value: expected 0 to {DICT}")
        return self.container(kind, depth + 1)

    def container(self, kind: int, depth: int) -> Any:
        count = self.size()
        self.need(count if kind == LIST else 5 * count)  # the shortest value takes 1 byte, with the shortest key 5
        if depth > self.limits.max_depth:
            raise ProtocolError(f"lists and dicts are nested more than {self.limits.max_depth} levels deep")
        if kind == LIST:
            return [self.value(depth) for _ in range(count)]
        return {self.text(): self.value(depth) for _ in range(count)}

    def array(self) -> Any:
        name, num_axes = self.text(), self.size()
        if name not in _DTYPES or num_axes > self.limits.max_axes:
            at_most = f"at most {self.limits.max_axes} axes and one of {', '.join(_DTYPES)}"
            raise ProtocolError(f"unsupported array with {num_axes} axes of dtype {name[:20]!r}: expected {at_most}")
        return self.numbers(name, struct.unpack(f"<{num_axes}I", self.take(4 * num_axes)))

    def image(self) -> Any:
        mode, width, height = self.text(), self.size(), self.size()
        if mode not in _MODES:
            raise ProtocolError(f"unsupported image mode {mode[:20]!r}: expected one of {', '.join(_MODES)}")
        name, channels = _MODES[mode]
        start = self.position + 4
        pixels = self.numbers(name, (height, width, channels) if channels > 1 else (height, width))
        if not _numpy():
            return Image(mode, width, height, self.data[start : self.position])
        return pixels.astype("float32") * _numpy().float32(1 / 255) if mode in _SCALED else pixels

    def numbers(self, name: str, shape: tuple[int, ...]) -> Any:
        raw, code, np = self.take(self.size()), _DTYPES[name], _numpy()
        if (size := math.prod(shape) * struct.calcsize("<" + code)) != len(raw):
            raise ProtocolError(f"an array of {name} with shape {shape} has {size} bytes, got {len(raw)} bytes")
        # Ignore zero lengths: otherwise a single one would let any length of the other axes pass the check above.
        if math.prod(filter(None, shape)) > (most := self.limits.max_frame if np else self.limits.max_values):
            raise ProtocolError(f"an array of shape {shape} is too large: at most {most} numbers are accepted")
        if name == "bool":  # other bytes than 0 and 1 would be truthy but not equal to True
            raw = raw.translate(bytes(byte == 1 for byte in range(256)))
        if np:
            return np.frombuffer(raw, _little_endian(name)).reshape(shape)
        numbers = list(struct.unpack(f"<{math.prod(shape)}{code}", raw))
        for length in shape[:0:-1] if numbers else ():
            numbers = [numbers[start : start + length] for start in range(0, len(numbers), length)]
        return numbers if shape else numbers[0]


def frame(payload: bytes, max_frame: int = Limits.max_frame) -> bytes:
    """Return a payload as a netstring, ``<length>:<payload>,``; raise ``ProtocolError`` above ``max_frame`` bytes."""
    if len(payload) > max_frame:
        raise ProtocolError(f"can't send, net string too long: {len(payload)} bytes, at most {max_frame} are allowed")
    return b"%d:%b," % (len(payload), payload)


class FrameReader:
    """Splits a stream, received in pieces of any size, into payloads; ``max_frame`` may change between pieces."""

    def __init__(self, max_frame: int = Limits.max_frame) -> None:
        self.max_frame, self._buffer, self._size = max_frame, bytearray(), -1  # -1: header incomplete

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that ``data`` completes. After invalid framing, every call raises ``ProtocolError``."""
        buffer, start, payloads = self._buffer, 0, []
        colon = data.find(b":", 1, 10)
        if colon > 0 and not buffer and self._size < 0 and data[-1:] == b"," and data[0] != ord("0"):
            digits = data[:colon]
            if digits.isdigit() and int(digits) == len(data) - colon - 2 <= self.max_frame:
                return [data[colon + 1 : -1]]  # one whole frame, by far the most frequent case
        buffer += data
        try:
            while True:
                start = self._after_header(start) if self._size < 0 else start
                end = start + self._size
                if self._size < 0 or len(buffer) <= end:
                    return payloads
                if buffer[end] != ord(","):
                    raise ProtocolError("wrong net string format: expected a comma after the announced number of bytes")
                payloads.append(bytes(buffer[start:end]))
                start, self._size = end + 1, -1
        finally:
            del buffer[:start]

    def _after_header(self, start: int) -> int:
        digits, colon, _ = self._buffer[start : start + 10].partition(b":")
        if (digits or colon) and not (
            digits.isdigit() and len(digits) < 10 and (digits == b"0" or digits[0] > ord("0"))
        ):
            raise ProtocolError("can't receive, wrong net string format: expected <length>:<payload>,")
        if not colon:
            return start
        if int(digits) > self.max_frame:
            raise ProtocolError(f"net string too long: {int(digits)} bytes, at most {self.max_frame} are allowed")
        self._size = int(digits)
        return start + len(digits) + 1

    @property
    def is_within_frame(self) -> bool:
        """True if a part of an incomplete frame was received."""
        return self._size >= 0 or bool(self._buffer)

    def end(self) -> ConnectionClosed:
        """Return the exception for the end of the stream; its message depends on whether a payload was incomplete."""
        return ConnectionClosed("connection closed" if self._size < 0 else "connection closed within a message")
