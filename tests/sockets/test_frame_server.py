"""The base of the frame servers, tested with both: tokens, TLS, limits and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from evorl.parameter_server.frames import LENGTHS
from evorl.parameter_server.frames import frame as command_frame
from evorl.parameter_server.wire import CommandServer
from evorl.serving.client import decode, encode, frame
from evorl.serving.connections import RlxServer
from evorl.serving.rlx import FrameReader
from evorl.serving.serve_settings import ServeSettings
from evorl.sockets.access import tls_context
from evorl.sockets.frame_server import HELLO_BYTES, FrameServer, refused_token
from tests.serving.test_switchboard import SwitchboardSetup
from tests.support.certificate import write_certificate
from tests.support.errors import raises_naming
from tests.support.servers import counting_commands

TOKEN = "sesame, open"
LOCAL = "127.0.0.1:0"


def _rlx_server(bind: str, token: str | None, files: tuple[Path, Path] | None) -> FrameServer:
    cert, key = map(str, files) if files else (None, None)
    settings = ServeSettings(bind=bind, token=token, cert=cert, key=key)
    switchboard = SwitchboardSetup(num_rows=8).switchboard
    switchboard.token = token
    return RlxServer(settings, switchboard)


def _command_server(bind: str, token: str | None, files: tuple[Path, Path] | None) -> FrameServer:
    return CommandServer(counting_commands(3).table(), bind, token, tls=tls_context(*(files or (None, None))))


@dataclasses.dataclass(frozen=True)
class Protocol:
    """One of the two protocols: how to build its server, a frame, and to read the message of a response."""

    server: Callable[[str, str | None, tuple[Path, Path] | None], FrameServer]
    command: str
    frame: Callable[[dict[str, Any]], bytes]
    header: Callable[[int], bytes]
    parsed: Callable[[bytes], dict[str, Any]]


def _rlx_response(data: bytes) -> dict[str, Any]:
    response = decode(FrameReader().feed(data)[0])
    return {"error": response["message"]} if response["response"] == "error" else response


def _command_response(data: bytes) -> dict[str, Any]:
    size, _ = LENGTHS.unpack(data[: LENGTHS.size])
    return json.loads(data[LENGTHS.size : LENGTHS.size + size])


PROTOCOLS = {
    "rlx": Protocol(_rlx_server, "init", lambda x: frame(encode(x)), lambda size: b"%d:" % size, _rlx_response),
    "parameters": Protocol(
        _command_server, "n_step", command_frame, lambda size: LENGTHS.pack(size, 0), _command_response
    ),
}
both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)


@contextlib.asynccontextmanager
async def started(
    protocol: Protocol, token: str | None = None, files: tuple[Path, Path] | None = None, **limits: Any
) -> AsyncIterator[FrameServer]:
    """A server that listens within the context."""
    server = protocol.server(LOCAL, token, files)
    server.sockets.limits = dataclasses.replace(server.sockets.limits, **limits)
    assert await server.start() == server.sockets.url_host
    try:
        yield server
    finally:
        await server.stop()


async def talk(server: FrameServer, *sent: bytes, tls: ssl.SSLContext | None = None) -> list[bytes]:
    """Return the response to each message; the last one is empty if the server disconnects."""
    reader, writer = await asyncio.open_connection(*server.sockets.address, ssl=tls)
    received: list[bytes] = []
    try:
        for data in sent:
            writer.write(data)
            received.append(await _read(reader, 20.0))
        if received[-1]:
            with contextlib.suppress(TimeoutError):
                received.append(await _read(reader, 0.2))
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
    return received


async def _read(reader: asyncio.StreamReader, seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        try:
            return await reader.read(2**16)
        except ConnectionError:
            return b""


@both_protocols
def test_token_is_required_in_the_first_message(protocol: Protocol) -> None:
    async def run() -> None:
        async with started(protocol, TOKEN) as server:
            for wrong in ({}, {"token": TOKEN + "x"}, {"token": 5}, {"token": None}, {"token": "s\u00e9same"}):
                refused, end = await talk(server, protocol.frame({"command": protocol.command, **wrong}))
                error = protocol.parsed(refused)["error"]
                assert "token" in error
                assert protocol.command in error or "first command" in error
                assert TOKEN not in error
                assert end == b"", "the connection is closed"
            right = protocol.frame({"command": protocol.command, "token": TOKEN})
            first, second = await talk(server, right, protocol.frame({"command": protocol.command}))
            assert "error" not in protocol.parsed(first)
            assert "error" not in protocol.parsed(second)

    asyncio.run(run())


@both_protocols
def test_traffic_is_encrypted_with_a_certificate(protocol: Protocol, tmp_path: Path) -> None:
    files = write_certificate(tmp_path)

    async def run() -> None:
        message = protocol.frame({"command": protocol.command})
        async with started(protocol, files=files) as server:
            (response,) = await talk(server, message, tls=ssl.create_default_context(cafile=files[0]))
            assert "error" not in protocol.parsed(response)
            with pytest.raises(ssl.SSLCertVerificationError):
                await talk(server, message, tls=ssl.create_default_context())
            plain = await talk(server, message)
            assert not any(data.startswith((b"1", b"{", message[:4])) for data in plain)

    asyncio.run(run())


@both_protocols
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_other_machines_need_a_token(protocol: Protocol, host: str) -> None:
    async def run() -> None:
        await protocol.server(f"{host}:0", None, None).start()

    with raises_naming(ValueError, "token", "127.0.0.1"):
        asyncio.run(run())


@both_protocols
def test_invalid_addresses_are_refused(protocol: Protocol) -> None:
    async def run() -> None:
        await protocol.server("7001", None, None).start()

    with raises_naming(ValueError, "bind", "'7001'"):
        asyncio.run(run())


@both_protocols
def test_surplus_connections_get_a_message(protocol: Protocol) -> None:
    async def run() -> None:
        async with started(protocol, connections=2) as server:
            held = [await asyncio.open_connection(*server.sockets.address) for _ in range(2)]
            await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection(*server.sockets.address)
            assert "too many connections" in protocol.parsed(await reader.read())["error"]
            for _, open_writer in [*held, (reader, writer)]:
                open_writer.close()
                await open_writer.wait_closed()

    asyncio.run(run())


@both_protocols
def test_first_message_has_a_size_limit(protocol: Protocol) -> None:
    """Before authentication messages are limited in size; later ones may be larger."""

    async def run() -> None:
        async with started(protocol) as server:
            refused, end = await talk(server, protocol.header(HELLO_BYTES + 1))
            assert "error" in protocol.parsed(refused)
            assert end == b""
            first = protocol.frame({"command": protocol.command})
            large = protocol.frame({"command": protocol.command, "comment": "a" * 2 * HELLO_BYTES})
            responses = await talk(server, first, large)
            assert ["error" in protocol.parsed(response) for response in responses] == [False, False]

    asyncio.run(run())


@both_protocols
@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64], ids=["http", "bytes"])
def test_invalid_frames_end_their_connection_alone(protocol: Protocol, sent: bytes) -> None:
    async def run() -> None:
        async with started(protocol) as server:
            reader, writer = await asyncio.open_connection(*server.sockets.address)
            refused, end = await talk(server, sent)
            assert "error" in protocol.parsed(refused)
            assert end == b""
            writer.write(protocol.frame({"command": protocol.command}))
            assert "error" not in protocol.parsed(await reader.read(2**16))
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


@both_protocols
def test_incomplete_and_silent_clients_are_disconnected(protocol: Protocol) -> None:
    """Clients are disconnected after a timeout before, within and between messages."""
    message = protocol.frame({"command": protocol.command})
    limits: dict[str, Any] = {"request_seconds": 0.3, "frame_seconds": 0.3, "idle_seconds": 0.6}

    async def closed_after(server: FrameServer, sent: bytes) -> float:
        began = time.monotonic()  # before the server can start its own clock
        reader, writer = await asyncio.open_connection(*server.sockets.address)
        async with asyncio.timeout(20):
            writer.write(sent)
            while await reader.read(2**16):
                pass
        writer.close()
        await writer.wait_closed()
        return time.monotonic() - began

    async def run() -> None:
        async with started(protocol, **limits) as server:
            sent = (b"", message[:-1], message + message[:3], message)
            first, part, later, silent = await asyncio.gather(*(closed_after(server, data) for data in sent))
            assert min(first, part, later) >= 0.3
            assert silent >= 0.6

    asyncio.run(run())


@both_protocols
def test_shutdown_closes_all_connections(protocol: Protocol) -> None:
    async def run() -> None:
        async with started(protocol) as server:
            pairs = [await asyncio.open_connection(*server.sockets.address) for _ in range(3)]
            pairs[0][1].write(protocol.frame({"command": protocol.command}))
            assert await pairs[0][0].read(2**16)
            pairs[1][1].write(protocol.frame({"command": protocol.command})[:5])
            address = server.sockets.address
        assert not server.sockets.connections
        for reader, writer in pairs:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    asyncio.run(run())


def test_a_refused_token_is_described() -> None:
    assert refused_token({}, None, "init") is None
    assert refused_token({"token": TOKEN}, TOKEN, "init") is None
    for message, received in (({}, "no token"), ({"token": ""}, "no token"), ({"token": "x"}, "another token")):
        refusal = refused_token(message, TOKEN, "init") or ""
        assert "init" in refusal
        assert received in refusal
