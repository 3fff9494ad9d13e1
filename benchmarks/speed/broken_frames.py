"""Invalid frames, derived from valid ones with a seed, so that they are reproducible.

A carrier is ``rlx``, ``text`` (JSON over WebSocket) or ``binary`` (MessagePack over WebSocket).
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.speed.wire_load import as_netstring
from evorl.serving.packed_messages import pack_message
from evorl.serving.rlx import encode

CARRIERS = ("rlx", "text", "binary")
MOST_REAL_BYTES = 2**18  # maximum size of a frame whose declared size is correct
LARGE = (0, 1, 2**16, 2**24, 2**31, 2**32 - 1)
OPCODES = {"text": 1, "binary": 2}
SPACE = {"shape": [3], "low": -1.0, "high": 1.0}


def valid_messages(state: Any) -> list[dict[str, Any]]:
    """Return the valid messages of a client with the given state."""
    update = {"command": "update", "reward": 0.5, "state": state, "terminal": False}
    return [
        {"command": "init", "exploit": False, "token": "none", "obs_space": SPACE, "action_space": SPACE, "sid": 1},
        {"command": "init", "exploit": True},
        update,
        {**update, "sid": "second"},
        {**update, "terminal": True, "truncated": True},
        {"command": "reset"},
        {"command": "update_metrics", "data": [{"method": "scalar", "name": "speed", "y": 1.0, "x": None}]},
        {"command": "update_metrics", "method": "histogram", "name": "speeds", "y": [1.0, 2.0], "x": 3},
        {"command": "disconnect", "sid": 1},
    ]


def packed(carrier: str, message: Any) -> bytes:
    """Return the payload of a message in the carrier's format."""
    if carrier == "rlx":
        return encode(message)
    return pack_message(message) if carrier == "binary" else json.dumps(message, default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.tolist()


def framed(carrier: str, payload: bytes) -> bytes:
    """Return the framed payload."""
    return as_netstring(payload) if carrier == "rlx" else websocket_frame(payload, OPCODES[carrier])


def websocket_frame(payload: bytes, opcode: int, declared_size: int | None = None, is_last: bool = True) -> bytes:
    """Return a WebSocket frame of a client, masked with zeros; ``declared_size`` is the size in its header."""
    size = len(payload) if declared_size is None else declared_size
    first = opcode | (0x80 if is_last else 0)
    if size < 126:
        header = struct.pack("!BB", first, 0x80 | size)
    elif size < 2**16:
        header = struct.pack("!BBH", first, 0xFE, size)
    else:
        header = struct.pack("!BBQ", first, 0xFF, size)
    return header + bytes(4) + payload


class BrokenFrames:
    """Generates frames.

    Args:
        state: state of a valid client.
        seed: seed of the random numbers.
    """

    def __init__(self, state: np.ndarray, seed: int) -> None:
        self._rng = random.Random(seed)
        self._messages = valid_messages(state)
        self._kinds: Mapping[str, Callable[[str], bytes]] = {
            "truncated": self._truncated,
            "oversized": self._oversized,
            "deep": self._deep,
            "wrong types": self._wrong_types,
            "wrong counts": self._wrong_counts,
            "changed bytes": self._changed,
            "random bytes": self._random,
            "out of turn": self._out_of_turn,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of faults."""
        return tuple(self._kinds)

    def draw(self, carrier: str) -> bytes:
        """Return a frame of a random kind."""
        return self.of_kind(self._rng.choice(self.kinds), carrier)

    def of_kind(self, kind: str, carrier: str) -> bytes:
        """Return a frame with this fault."""
        return self._kinds[kind](carrier)

    def _payload(self, carrier: str) -> bytearray:
        return bytearray(packed(carrier, self._rng.choice(self._messages)))

    def _truncated(self, carrier: str) -> bytes:
        """End the stream within a frame, or the frame within its message."""
        payload = bytes(self._payload(carrier))
        if self._rng.random() < 0.5:
            return framed(carrier, payload[: self._rng.randrange(len(payload))])
        whole = framed(carrier, payload)
        return whole[: self._rng.randrange(1, len(whole))]

    def _oversized(self, carrier: str) -> bytes:
        """Declare lengths that exceed the payload, or send large frames."""
        rng, payload = self._rng, self._payload(carrier)
        how = rng.randrange(3)
        if how == 0 and carrier == "rlx":
            return b"%d:" % rng.choice((2**24 + 1, 10**9 - 1, 10**9, 10**20)) + payload
        if how == 0:
            return websocket_frame(bytes(payload), OPCODES[carrier], rng.choice((2**16, 2**24 + 1, 2**40, 2**63 - 1)))
        if how == 1:
            at = rng.randrange(len(payload))
            payload[at : at + 4] = struct.pack("<I" if carrier == "rlx" else ">I", rng.choice(LARGE))
            return framed(carrier, bytes(payload))
        numbers = np.zeros(rng.randrange(MOST_REAL_BYTES // 8), np.float32)
        message = {**rng.choice(self._messages), rng.choice(("state", "data", "name", "y", "more")): numbers}
        return framed(carrier, packed(carrier, message))

    def _deep(self, carrier: str) -> bytes:
        """Nest lists or maps."""
        depth, maps = self._rng.choice((2, 15, 17, 100, 2000, 20_000)), self._rng.random() < 0.5
        if carrier == "text":
            return framed(carrier, (b'{"state":' if maps else b"[") * depth + b"1" + (b"}" if maps else b"]") * depth)
        if carrier == "binary":
            return framed(carrier, (b"\x81\xa5state" if maps else b"\x91") * depth + b"\x01")
        value = (b"\x0b\x01\0\0\0\x05\0\0\0state" if maps else b"\x08\x01\0\0\0") * depth + b"\x01"
        return framed(carrier, struct.pack("<II", 1, 5) + b"state" + value)

    def _wrong_types(self, carrier: str) -> bytes:
        """Replace entries by values of other types."""
        message = dict(self._rng.choice(self._messages))
        for name in self._rng.choices([*message], k=self._rng.randint(1, 2)):
            message[name] = self._other()
        return framed(carrier, packed(carrier, message))

    def _other(self) -> Any:
        rng = self._rng
        return rng.choice(
            (
                None, True, -1, 2**40, 0.5, float("nan"), float("-inf"), 1e308, "", "update", "x" * 5000, [], {},
                [[]], [None], [0.5] * 1000, ["0.5"], {"command": "init"}, {"shape": [2**31, 2**31]}, {"n": 10**12},
                {"shape": [0, 2**40]}, {"shape": [4000, 4000]}, {"shape": [1], "dtype": "U30000000"},
                {"low": [0.0] * 999, "high": 1.0}, {"a": {"a": {"shape": [9]}}},
                [{"name": 1}], [{"name": "n" * 300, "y": {}}], [{"name": f"{rng.random()}", "y": 1}] * 50,
                np.zeros((3, 3), np.float64), np.zeros(17, bool), np.zeros((0, 5), np.uint8), np.full(17, np.nan),
                np.array(1.5), np.zeros((1,) * 8, np.int64), np.full(17, 1e30, np.float32),
            )
        )  # fmt: skip

    def _wrong_counts(self, carrier: str) -> bytes:
        """Omit or repeat parts, or declare a wrong length."""
        rng, payload = self._rng, self._payload(carrier)
        at, size = rng.randrange(len(payload)), rng.randint(1, 16)
        how = rng.randrange(3)
        if how == 0:
            del payload[at : at + size]
        elif how == 1:
            payload[at:at] = payload[at : at + size]
        else:
            other = max(0, len(payload) + rng.choice((-4, -1, 1, 3, 100)))
            if carrier == "rlx":
                return b"%d:%b," % (other, payload)
            return websocket_frame(bytes(payload), OPCODES[carrier], other)
        return framed(carrier, bytes(payload))

    def _changed(self, carrier: str) -> bytes:
        """Change some bytes of the message or of its framing."""
        rng, payload = self._rng, self._payload(carrier)
        whole = payload if rng.random() < 0.5 else bytearray(framed(carrier, bytes(payload)))
        for _ in range(rng.randint(1, 4)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        return framed(carrier, bytes(whole)) if whole is payload else bytes(whole)

    def _random(self, carrier: str) -> bytes:
        """Return random bytes, with or without a frame."""
        rng = self._rng
        noise = rng.randbytes(rng.randint(1, 400))
        if carrier != "rlx" and rng.random() < 0.3:  # another frame type: continuation, close, or ping
            return websocket_frame(noise[:200], rng.choice((0, 3, 8, 9, 10, 15)), is_last=rng.random() < 0.5)
        return framed(carrier, noise) if rng.random() < 0.5 else noise

    def _out_of_turn(self, carrier: str) -> bytes:
        """Return valid messages at the wrong time: together, repeated, or with unknown commands."""
        rng = self._rng
        messages = [dict(rng.choice(self._messages)) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.3:
            messages[0]["command"] = rng.choice(("fly", "__init__", "receive", "", "update "))
        if carrier != "rlx" and rng.random() < 0.5:
            return framed(carrier, packed(carrier, messages))
        return b"".join(framed(carrier, packed(carrier, message)) for message in messages)
