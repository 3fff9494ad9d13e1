"""Messages that are laid out as one before, read at once: next to all that a simulator sends are.

``decode`` walks through a message from type to type. A simulator says the same again and again, with other numbers in
it; so what it has said is kept as a layout: bytes that stay as they are and, between them, places of numbers.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from evorl.serving.rlx import BOOLEAN, DOUBLE, INT4, INT64, LIST, NDARRAY, NULL, STRING, UINT4, Limits, decode

MOST_LAYOUTS = 4  # of a connection, of different lengths
MOST_ATTEMPTS = 64  # to find one; whoever never repeats a message is read in full
MOST_ITEMS = 256  # of a list of numbers
_NUMBERS = {INT4: "i", DOUBLE: "d", UINT4: "I", INT64: "q"}  # as the module struct has them
Places = list[tuple[int, int, str]]  # where numbers begin and end, and as what they are read


class RepeatedMessages:
    """Reads the messages of one connection as ``decode`` does, sooner where they repeat themselves.

    Args:
        limits: of ``decode``.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._layouts: dict[int, Layout] = {}  # by the bytes of the message
        self._attempts = 0

    def decode(self, payload: bytes) -> dict[str, Any]:
        """The message of a payload. Raises ``ProtocolError``, see ``evorl.serving.rlx.decode``."""
        size = len(payload)
        layout = self._layouts.get(size)
        message = None if layout is None else layout.read(payload)
        if message is not None:
            return message
        message = decode(payload, self._limits)
        if self._attempts < MOST_ATTEMPTS and (layout is not None or len(self._layouts) < MOST_LAYOUTS):
            self._attempts += 1
            layout = layout_of(payload, message)
            if layout is not None:
                self._layouts[size] = layout
        return message


class Layout:
    """Messages that differ in numbers only.

    Args:
        payload: of one of them.
        message: that it is.
        places: of the numbers, in their order.
        varying: how values are made of these, by their keys.
    """

    def __init__(
        self,
        payload: bytes,
        message: Mapping[str, Any],
        places: Places,
        varying: Mapping[str, Callable[[tuple[Any, ...]], Any]],
    ) -> None:
        starts, ends = [0, *(end for _, end, _ in places)], [*(start for start, _, _ in places), len(payload)]
        gaps = [f"{end - start}s" for start, end in zip(starts, ends, strict=True)]
        self._struct = struct.Struct("<" + "".join(gap + code for gap, (_, _, code) in zip(gaps, places)) + gaps[-1])
        self._fixed = self._struct.unpack(payload)[::2]
        self._message, self._varying = dict(message), list(varying.items())

    def read(self, payload: bytes) -> dict[str, Any] | None:
        """The message, of a payload of the same length; ``None`` where it differs in more than numbers."""
        parts = self._struct.unpack(payload)
        if parts[::2] != self._fixed:
            return None
        numbers, message = parts[1::2], self._message.copy()
        for key, value_of in self._varying:
            message[key] = value_of(numbers)
        return message


def layout_of(payload: bytes, message: Mapping[str, Any]) -> Layout | None:
    """The layout of a message that was read; ``None`` where it has parts that are not simple, or keys twice."""
    position, places = 4, Places()
    varying: dict[str, Callable[[tuple[Any, ...]], Any]] = {}
    for key, value in message.items():
        position += 4 + len(key.encode())
        spans = list(_spans(payload, position, value))
        if not spans:
            return None
        position = spans.pop()[1]
        if spans:
            varying[key] = _reader(value, len(places), len(places) + len(spans))
        places += spans
    return Layout(payload, message, places, varying) if position == len(payload) else None


def _spans(payload: bytes, start: int, value: Any) -> Iterator[tuple[int, int, str]]:
    """Places of the numbers of a value whose type stands at ``start``; the last one says where it ends.

    Nothing where the value is not simple.
    """
    kind, end = payload[start], start + 1
    if kind in _NUMBERS:
        end += struct.calcsize("<" + _NUMBERS[kind])
        yield start + 1, end, _NUMBERS[kind]
    elif kind == BOOLEAN:
        end += 1
        yield start + 1, end, "1s"
    elif kind == STRING:
        end += 4 + len(value.encode())
    elif kind == NDARRAY and value.dtype.kind != "b":
        end += 4 + len(value.dtype.name) + 4 + 4 * value.ndim + 4 + value.nbytes
        yield end - value.nbytes, end, f"{value.nbytes}s"
    elif kind == LIST and len(value) <= MOST_ITEMS and all(type(item) is float for item in value):
        end += 4
        for _ in value:
            yield end + 1, end + 9, "d"
            end += 9
    elif kind != NULL:
        return
    yield end, end, ""


def _reader(value: Any, start: int, end: int) -> Callable[[tuple[Any, ...]], Any]:
    """How a value like this one is made of all numbers of a message, of which its own are ``[start, end)``."""
    if isinstance(value, list):
        return lambda numbers: list(numbers[start:end])
    if isinstance(value, np.ndarray):
        dtype, shape = value.dtype, value.shape
        if value.ndim == 1:
            return lambda numbers: np.frombuffer(numbers[start], dtype)
        return lambda numbers: np.frombuffer(numbers[start], dtype).reshape(shape)
    if isinstance(value, bool):
        return lambda numbers: numbers[start] == b"\1"
    return operator.itemgetter(start)
