"""Clients that repeat one request, all in one process: ``python -m benchmarks.speed.wire_load SETTINGS``.

Settings, JSON: ``address`` (host, port), ``carrier`` (rlx, websocket, grpc), ``clients``, ``hello`` and ``question``
(the bytes of a message without its frame, base64; the first is sent once), ``pause`` (mean seconds between a response
and the next request, uniform between 0 and twice that; 0 for none). It prints ``ready`` when all have received a
response, continues until its input is closed, and reports latencies in seconds.

It requires only the standard library, except for grpc, so that encoding and decoding messages costs nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MASK = b"\0\0\0\0"  # of a WebSocket frame; this mask leaves the bytes unchanged
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
METHOD = "/serving/Play"  # of gRPC


def as_netstring(payload: bytes) -> bytes:
    """Return an RLX frame."""
    return b"%d:%b," % (len(payload), payload)


def netstring_ends(data: bytes) -> int:
    """Return the end of the first frame of ``data``; greater than its length if the frame is incomplete."""
    digits, colon, _ = data[:10].partition(b":")
    return len(digits) + 2 + int(digits) if colon else len(data) + 1


def as_websocket_frame(payload: bytes) -> bytes:
    """Return a binary frame of a client."""
    size = len(payload)
    header = struct.pack("!BB", 0x82, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x82, 0xFE, size)
    return header + MASK + payload


def websocket_frame_ends(data: bytes) -> int:
    """Return the end of a server's unmasked frame, like ``netstring_ends``."""
    if len(data) < 4:
        return len(data) + 1
    size = data[1] & 127
    return 2 + size if size < 126 else 4 + int.from_bytes(data[2:4], "big")


FRAMES: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], int]]] = {
    "rlx": (as_netstring, netstring_ends),
    "websocket": (as_websocket_frame, websocket_frame_ends),
}


class Asking:
    """Shared state of all clients: their request, and their latencies."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.hello, self.question = (base64.b64decode(settings[name]) for name in ("hello", "question"))
        self.address, self.carrier = tuple(settings["address"]), settings["carrier"]
        self.clients, self.pause = settings["clients"], settings["pause"]
        self.seconds: list[float] = []
        self.waits = random.Random(0)
        self.begun = 0

    def begins(self) -> None:
        """Record that a client received its first response."""
        self.begun += 1
        if self.begun == self.clients:
            self.seconds.clear()
            print("ready", flush=True)

    def draw_pause(self) -> float:
        """Return the seconds until the next request."""
        return self.waits.uniform(0.0, 2 * self.pause)


class Client(asyncio.Protocol):
    """A client that sends a request after each response."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        frame, self.ends = FRAMES[asking.carrier]
        self.hello, self.question = frame(asking.hello), frame(asking.question)
        self.buffer = b""
        self.upgrades = asking.carrier == "websocket"
        self.sent_at = -1.0
        self.has_begun = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(UPGRADE if self.upgrades else self.hello)

    def data_received(self, data: bytes) -> None:
        self.buffer = data = self.buffer + data
        if self.upgrades:
            if b"\r\n\r\n" in data:
                self.upgrades, self.buffer = False, b""
                self.transport.write(self.hello)
            return
        if len(data) < self.ends(data):
            return
        self.buffer = b""
        if self.sent_at > 0.0:
            self.asking.seconds.append(time.perf_counter() - self.sent_at)
            if not self.has_begun:
                self.has_begun = True
                self.asking.begins()
        if self.asking.pause:
            asyncio.get_running_loop().call_later(self.asking.draw_pause(), self.ask)
        else:
            self.ask()

    def ask(self) -> None:
        """Send the request."""
        self.sent_at = time.perf_counter()
        self.transport.write(self.question)

    def connection_lost(self, exc: Exception | None) -> None:
        raise SystemExit(f"the server has closed a connection: {self.buffer[:200]!r}")


async def ask_together(asking: Asking) -> None:
    """Run all clients in one event loop, until the input is closed."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set)), daemon=True).start()
    if asking.carrier == "grpc":
        await ask_by_grpc(asking, over)
        return
    for _ in range(asking.clients):
        await loop.create_connection(lambda: Client(asking), *asking.address)
    await over.wait()


async def ask_by_grpc(asking: Asking, over: asyncio.Event) -> None:
    """Run all clients as streams of one channel each."""
    import grpc

    async def play() -> None:
        async with grpc.aio.insecure_channel("{}:{}".format(*asking.address)) as channel:
            stream = channel.stream_stream(METHOD)()
            while not over.is_set():
                sent_at = time.perf_counter()
                await stream.write(asking.question)
                await stream.read()
                asking.seconds.append(time.perf_counter() - sent_at)
                if not begun.get(asyncio.current_task()):
                    begun[asyncio.current_task()] = True
                    asking.begins()
            await stream.done_writing()

    begun: dict[Any, bool] = {}
    await asyncio.gather(*[play() for _ in range(asking.clients)])


def ask_alone(asking: Asking) -> None:
    """Run one blocking client, like a simulator, until the input is closed."""
    frame, ends = FRAMES[asking.carrier]
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    connection = socket.create_connection(asking.address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer(message: bytes) -> None:
        connection.sendall(message)
        data = connection.recv(2**16)
        while len(data) < ends(data):
            data += connection.recv(2**16)

    answer(frame(asking.hello))
    question = frame(asking.question)
    while not over.is_set():
        sent_at = time.perf_counter()
        answer(question)
        asking.seconds.append(time.perf_counter() - sent_at)
        if not asking.begun:
            asking.begins()
        time.sleep(asking.draw_pause())


def main() -> None:
    asking = Asking(json.loads(sys.argv[1]))
    if asking.clients == 1:
        ask_alone(asking)
    else:
        asyncio.run(ask_together(asking))
    results = {"answers": len(asking.seconds), "answer_seconds": statistics.median(asking.seconds)}
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
