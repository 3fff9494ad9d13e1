"""Clients that play and check each response, in one process: ``python -m benchmarks.speed.wire_honest SETTINGS``.

Settings, JSON: ``addresses`` (host and port by carrier: rlx, websocket), ``clients`` (8, alternating between the
carriers), ``pause`` (seconds between a response and the next request). It prints ``ready`` when all have received a
response, continues until its input is closed, and reports the numbers of requests, of correct and of lost responses.

Every second pair of clients sends ``exploit``: its responses to equal states must be equal, and must differ from the
responses to its neighbors.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.speed.serving import STATE
from evorl.serving.packed_messages import pack_message, unpack_message
from evorl.serving.rlx import FrameReader, decode, encode, frame

MOST_SECONDS = 20.0  # timeout of a response
EPISODE_STEPS = 25
NUM_STATES = 3  # states of a client, in turn
TOLERANCE = 1e-4  # between programs of different batch sizes, for the same action


class OverTcp:
    """A client connection over RLX."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()

    async def ask(self, message: Mapping[str, Any]) -> Any:
        """Send a message and return the response."""
        self._writer.write(frame(encode(message)))
        while True:
            data = await self._reader.read(2**16)
            if not data:
                raise ConnectionError("the server has closed the connection")
            if payloads := self._frames.feed(data):
                (payload,) = payloads
                return decode(payload)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class OverWebSocket:
    """A client connection with MessagePack."""

    def __init__(self, session: Any, socket: Any) -> None:
        self._session, self._socket = session, socket

    async def ask(self, message: Mapping[str, Any]) -> Any:
        """Send a message and return the response."""
        await self._socket.send_bytes(pack_message(message))
        return unpack_message(await self._socket.receive_bytes())

    async def close(self) -> None:
        """Close the connection."""
        await self._socket.close()
        await self._session.close()


async def connect(carrier: str, address: Sequence[Any]) -> OverTcp | OverWebSocket:
    """Connect to the server."""
    host, port = address
    if carrier == "rlx":
        return OverTcp(*await asyncio.open_connection(host, port))
    import aiohttp

    session = aiohttp.ClientSession()
    return OverWebSocket(session, await session.ws_connect(f"http://{host}:{port}/ws"))


class Tally:
    """Results of all clients."""

    def __init__(self, clients: int) -> None:
        self.clients, self.begun = clients, 0
        self.requests = self.answered = 0
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def results(self) -> dict[str, Any]:
        """Return the number of lost or wrong responses, the median latency and the 99th percentile, in seconds."""
        middle, slow = np.quantile(self.seconds or [np.nan], (0.5, 0.99))
        return {
            "asked": self.requests,
            "lost": self.requests - self.answered,
            "failures": self.failures[:10],
            "answer_seconds": float(middle),
            "slow_answer_seconds": float(slow),
        }


class Honest:
    """One client.

    Args:
        number: number of the client.
        state: its approximate state.
        tally: results of all clients.
    """

    def __init__(self, number: int, state: np.ndarray, tally: Tally) -> None:
        self._tally = tally
        self._exploits = number % 4 < 2
        scales = np.arange(1, NUM_STATES + 1, dtype=state.dtype) + number * NUM_STATES
        self._states = [state * (scale / NUM_STATES / tally.clients) for scale in scales]
        self._known: dict[int, np.ndarray] = {}
        self._steps = 0

    async def play(
        self, carrier: str, address: Sequence[Any], pause: float, is_over: Callable[[], bool], began: Callable[[], None]
    ) -> None:
        """Play episode after episode until the end; errors are recorded and end the client."""
        connection = None
        try:
            connection = await connect(carrier, address)
            await self._ask(connection, {"command": "init", "exploit": self._exploits}, {"response": "ready"})
            began()
            while not is_over():
                await self._step(connection)
                await asyncio.sleep(pause)
        except Exception as error:
            self._tally.failures.append(f"{carrier}: {type(error).__name__} {error}")
        finally:
            if connection is not None:
                await connection.close()

    async def _step(self, connection: OverTcp | OverWebSocket) -> None:
        step = self._steps % EPISODE_STEPS
        which = self._steps % NUM_STATES
        self._steps += 1
        message = {"command": "update", "reward": 0.5 if step else None, "state": self._states[which]}
        if step == EPISODE_STEPS - 1:
            await self._ask(connection, {**message, "terminal": True}, {"response": "action", "data": None})
            return
        answer = await self._ask(connection, {**message, "terminal": False}, None)
        action = np.asarray(answer["data"], np.float64)
        if answer["response"] != "action" or not np.isfinite(action).all():
            raise ValueError(f"no action: {answer}")
        if self._exploits:
            known = self._known.setdefault(which, action)
            if action.shape != known.shape or np.abs(action - known).max() > TOLERANCE:
                raise ValueError(f"received the action of another client: {action} instead of {known}")
        self._tally.answered += 1

    async def _ask(self, connection: OverTcp | OverWebSocket, message: Mapping[str, Any], expected: Any) -> Any:
        """Return the response, and count it if it equals ``expected``; without ``expected`` the caller counts it."""
        self._tally.requests += 1
        start = time.perf_counter()
        answer = await asyncio.wait_for(connection.ask(message), MOST_SECONDS)
        self._tally.seconds.append(time.perf_counter() - start)
        if expected is not None:
            if answer != expected:
                raise ValueError(f"received {answer}, expected {expected}")
            self._tally.answered += 1
        return answer


async def play_together(
    addresses: Mapping[str, Sequence[Any]],
    is_over: Callable[[], bool],
    clients: int = 8,
    pause: float = 0.005,
    state: np.ndarray = STATE,
    all_began: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run all clients in one event loop until the end; return ``Tally.results``."""
    tally = Tally(clients)

    def began() -> None:
        tally.begun += 1
        if tally.begun == clients:
            all_began()

    players = []
    for number in range(clients):
        carrier = ("rlx", "websocket")[number % 2]
        players.append(Honest(number, state, tally).play(carrier, addresses[carrier], pause, is_over, began))
    await asyncio.gather(*players)
    return tally.results()


def main() -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    settings = json.loads(sys.argv[1])
    results = asyncio.run(play_together(is_over=over.is_set, all_began=lambda: print("ready", flush=True), **settings))
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
