"""Every server disconnects slow and silent clients; a failing protocol ends one client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any
from unittest.mock import MagicMock

import pytest

from evorl.parameter_server.frames import frame as command
from evorl.serving.client import encode, frame
from evorl.sockets.socket_server import ConnectionLimits, GuardedConnection, Patience, SocketServer
from tests.support.errors import raises_naming
from tests.support.servers import SERVERS, all_it_says, running

pytest.importorskip("aiohttp", reason="pages need the extra serve")
FIRST = {
    "rlx": frame(encode({"command": "init"})),
    "web": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "page": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "parameters": command({"command": "n_step"}),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95])
def test_a_first_request_that_is_not_completed_ends_the_connection(name: str, share: float) -> None:
    """200 simultaneous incomplete requests are disconnected, after the same timeout for every server."""

    async def run() -> None:
        async with running(name, request_seconds=0.3) as port:
            part = FIRST[name][: int(share * len(FIRST[name]))]
            started = time.monotonic()
            await asyncio.gather(*(all_it_says(port, part) for _ in range(200)))
            assert time.monotonic() - started > 0.25
            assert await first_answer(port, FIRST[name])

    asyncio.run(run())


@pytest.mark.parametrize("name", SERVERS)
def test_dripping_does_not_help(name: str) -> None:
    async def run() -> None:
        async with running(name, request_seconds=0.3) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(10):
                    for byte in FIRST[name][:-2] * 1000:
                        writer.write(bytes([byte]))
                        await writer.drain()
                        if reader.at_eof():
                            break
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.02):
                                await reader.read(2**16)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            assert await first_answer(port, FIRST[name])

    asyncio.run(run())


async def first_answer(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(10):
        received = await reader.read(2**16)
    writer.close()
    await writer.wait_closed()
    return received


def test_times_of_a_patience() -> None:
    limits = ConnectionLimits(request_seconds=10.0, frame_seconds=120.0, idle_seconds=600.0)
    patience = Patience(limits, now=100.0)
    assert not patience.is_over(110.0)
    assert patience.is_over(110.1), "nothing was understood"
    patience.has_begun = True
    patience.note_request(105.0)
    assert not patience.is_over(705.0)
    assert patience.is_over(705.1), "it is silent"
    patience.note_part(200.0)
    patience.note_part(300.0)
    assert not patience.is_over(320.0)
    assert patience.is_over(320.1), "a frame that was begun at 200 is not complete"
    patience.note_request(320.0)
    assert not patience.is_over(900.0)
    endless = Patience(ConnectionLimits(), 0.0)
    endless.has_begun = True
    assert not endless.is_over(1e9)


def test_half_a_frame_after_init_ends_the_connection() -> None:
    async def run() -> None:
        server = SocketServer(lambda: Halves(), ConnectionLimits(request_seconds=0.2, frame_seconds=0.2))
        await server.start("127.0.0.1", 0)
        assert await all_it_says(server.address[1], b"whole|ha") == b"whole"
        await server.stop()

    asyncio.run(run())


def test_silence_is_counted_from_the_end_of_an_answer() -> None:
    async def run() -> None:
        connection = GuardedConnection(SocketServer(Halves, ConnectionLimits(idle_seconds=1.0)), Halves())
        connection._now = lambda: now
        transport, now = MagicMock(), 0.0
        transport.is_closing.return_value, transport.get_write_buffer_size.return_value = False, 0
        connection.connection_made(transport)
        connection.data_received(b"whole|")
        connection._inner.is_answering = True
        for now in (5.0, 10.0):
            connection.end_if_overdue(now)
        connection._inner.is_answering = False  # answered between two checks
        connection.end_if_overdue(11.5)
        transport.close.assert_not_called()
        connection.end_if_overdue(13.0)
        transport.close.assert_called_once()

    asyncio.run(run())


class Halves(asyncio.Protocol):
    """Protocol that echoes requests, which end with a bar."""

    def __init__(self) -> None:
        self.has_begun, self.num_requests, self._left = False, 0, b""
        self.is_answering = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    @property
    def is_within_request(self) -> bool:
        return bool(self._left)

    def data_received(self, data: bytes) -> None:
        if data == b"fail":
            raise ZeroDivisionError("by a client")
        *whole, self._left = (self._left + data).split(b"|")
        for request in whole:
            self.num_requests += 1
            self.has_begun = True
            self._transport.write(request)


def test_a_failing_protocol_ends_its_client_alone_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        server = SocketServer(Halves, name="Halves")
        await server.start("127.0.0.1", 0)
        port = server.address[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await all_it_says(port, b"fail") == b""
        writer.write(b"yes|")
        assert await reader.read(3) == b"yes"
        writer.close()
        await writer.wait_closed()
        await server.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    (record,) = caplog.records
    assert "Halves failed" in record.getMessage()
    assert "by a client" in record.getMessage()
    assert record.exc_info is None


def test_more_connections_than_allowed_are_closed() -> None:
    async def run() -> None:
        server = SocketServer(Halves, ConnectionLimits(connections=2))
        await server.start("127.0.0.1", 0)
        port = server.address[1]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await all_it_says(port, b"x|") == b""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        await server.stop()
        assert not server.connections

    asyncio.run(run())


def test_who_does_not_read_is_ended() -> None:
    async def run() -> None:
        server = SocketServer(Halves, ConnectionLimits(request_seconds=0.2, frame_seconds=0.3))
        await server.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.address[1], limit=16)
        writer.write(b"a" * 40_000_000 + b"|")
        async with asyncio.timeout(20):
            while not server.connections:
                await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            while server.connections:
                await asyncio.sleep(0.05)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_token(host: str) -> None:
    async def run() -> None:
        await SocketServer(Halves).start(host, 0)

    with raises_naming(ValueError, "token"):
        asyncio.run(run())
