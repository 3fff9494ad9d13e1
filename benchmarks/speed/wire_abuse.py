"""Misbehaving clients, all in one process: ``python -m benchmarks.speed.wire_abuse SETTINGS``.

Settings, JSON: ``addresses`` (host and port by carrier: rlx, websocket), ``connections`` (50), ``frames`` (100,000 in
total), ``seed``. Each client sends broken frames, some of them a few bytes at a time, until it or the server closes the
connection, and reconnects. At the end it prints the number of sent frames and of connections.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.speed.broken_frames import BrokenFrames, framed, packed
from benchmarks.speed.serving import STATE
from benchmarks.speed.wire_load import UPGRADE

PATIENCE = 0.02  # seconds to wait for a response to a frame
SHARE_DRIPPED = 0.01  # fraction of the frames that are sent in pieces with pauses
MOST_PIECES, MOST_PAUSE = 200, 0.03  # maximum number of pieces, and maximum pause in seconds
MOST_FRAMES_A_VISIT = 40
WAYS_OUT = ("close", "abort", "write_eof")
LEAVING_SECONDS = 0.1
CLOSED_BY_SERVER = 0x88  # the first byte of a WebSocket close frame


class Line(asyncio.Protocol):
    """A connection with two events: a response arrived, and the connection was closed."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.is_over = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.is_over |= data[0] == CLOSED_BY_SERVER or (len(data) > 4 and data[-4] == CLOSED_BY_SERVER)
        self.answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.answered.set()

    async def send(self, data: bytes, patience: float = PATIENCE) -> bool:
        """Send data; return True if a response arrives soon."""
        self.answered.clear()
        self.transport.write(data)
        try:
            await asyncio.wait_for(self.answered.wait(), patience)
        except TimeoutError:
            return False
        return True


class Abuser:
    """A client that reconnects repeatedly.

    Args:
        address: address of the server.
        carrier: rlx, text or binary.
        frames: total number of frames to send.
        seed: seed of its actions.
        tally: counts of the actions of all clients.
    """

    def __init__(
        self, address: Sequence[Any], carrier: str, frames: int, seed: int, tally: collections.Counter[str]
    ) -> None:
        self._host, self._port = address
        self._carrier, self._left, self._tally = carrier, frames, tally
        self._broken, self._rng = BrokenFrames(STATE, seed), random.Random(seed)

    async def stay(self) -> None:
        """Continue until all frames were sent."""
        while self._left > 0:
            _, line = await asyncio.get_running_loop().create_connection(Line, self._host, self._port)
            self._tally["connections"] += 1
            try:
                await self._visit(line)
            finally:
                self._leave(line)

    async def _visit(self, line: Line) -> None:
        if self._carrier != "rlx":
            await line.send(UPGRADE, 5.0)
        if self._rng.random() < 0.7:
            await line.send(framed(self._carrier, packed(self._carrier, {"command": "init", "exploit": False})), 5.0)
        for _ in range(self._rng.randint(1, MOST_FRAMES_A_VISIT)):
            if line.is_over or self._left == 0:
                return
            self._left -= 1
            self._tally["frames"] += 1
            data = self._broken.draw(self._carrier)
            if self._rng.random() < SHARE_DRIPPED:
                self._tally["dripped"] += 1
                await self._drip(line, data)
            elif await line.send(data):
                self._tally["answered"] += 1

    async def _drip(self, line: Line, data: bytes) -> None:
        size, pause = max(1, len(data) // MOST_PIECES), self._rng.uniform(0.0, MOST_PAUSE)
        for start in range(0, len(data), size):
            if line.is_over:
                return
            line.transport.write(data[start : start + size])
            await asyncio.sleep(pause)

    def _leave(self, line: Line) -> None:
        with contextlib.suppress(OSError):
            getattr(line.transport, self._rng.choice(WAYS_OUT))()
        # A client that only closed its sending side aborts the connection a little later.
        asyncio.get_running_loop().call_later(LEAVING_SECONDS, line.transport.abort)


async def abuse(
    addresses: Mapping[str, Sequence[Any]], connections: int = 50, frames: int = 100_000, seed: int = 0
) -> dict[str, int]:
    """Run all clients; return counts of their actions: ``frames``, ``connections``, ``dripped`` and ``answered``."""
    tally: collections.Counter[str] = collections.Counter()
    carriers = ("rlx", "text", "rlx", "binary")
    shares = [frames // connections + (i < frames % connections) for i in range(connections)]
    abusers = []
    for i, share in enumerate(shares):
        carrier = carriers[i % len(carriers)]
        address = addresses["rlx" if carrier == "rlx" else "websocket"]
        abusers.append(Abuser(address, carrier, share, seed * connections + i, tally))
    await asyncio.gather(*[abuser.stay() for abuser in abusers])
    await asyncio.sleep(LEAVING_SECONDS)  # until the last clients have disconnected
    return dict(tally)


def main() -> None:
    settings = json.loads(sys.argv[1])
    print("ready", flush=True)
    print(json.dumps(asyncio.run(abuse(**settings))), flush=True)


if __name__ == "__main__":
    main()
