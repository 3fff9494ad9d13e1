"""Page service: ports, TLS, connections that send no request."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.page_guard import PageGuard
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from evorl.sockets.access import tls_context
from evorl.sockets.socket_server import ConnectionLimits
from tests.support.certificate import write_certificate
from tests.support.errors import raises_naming


def page(tmp_path: Path, **options: Any) -> LivePage:
    return LivePage(WatchedRuns([], tmp_path / "runs"), MetricsStore(), **options)


async def status(address: str, **options: Any) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{address}/healthz", **options) as answer:
        return answer.status


def test_it_is_there_within_and_gone_behind(tmp_path: Path) -> None:
    async def conversation() -> None:
        async with serving(page(tmp_path)) as address:
            assert address.startswith("http://127.0.0.1:")
            assert await status(address) == 200
            port = int(address.rpartition(":")[2])
            with raises_naming(ValueError, "127.0.0.1", port):
                async with serving(page(tmp_path), port):
                    pass
        with pytest.raises(aiohttp.ClientConnectorError):
            await status(address)

    asyncio.run(conversation())


def test_tls(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)

    async def conversation() -> None:
        async with serving(page(tmp_path), tls=tls_context(cert, key)) as address:
            assert address.startswith("https://")
            assert await status(address, ssl=ssl.create_default_context(cafile=str(cert))) == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await status(address)
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await status(address.replace("https", "http"))

    asyncio.run(conversation())


def test_the_address_of_version_6(tmp_path: Path) -> None:
    async def conversation() -> None:
        with contextlib.suppress(ValueError):  # unavailable on some machines
            async with serving(page(tmp_path, guard=PageGuard("::1"))) as address:
                assert address.startswith("http://[::1]:")
                assert await status(address) == 200

    asyncio.run(conversation())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_who_does_not_ask_is_sent_away(tmp_path: Path, sent: bytes) -> None:
    async def conversation() -> None:
        async with serving(page(tmp_path), limits=ConnectionLimits(request_seconds=0.3)) as address:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
            writer.write(sent)
            drip = asyncio.create_task(dripping(writer))
            await asyncio.wait_for(reader.read(), 5)
            drip.cancel()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def dripping(writer: asyncio.StreamWriter) -> None:
        while sent:
            await asyncio.sleep(0.05)
            writer.write(b"a")

    asyncio.run(conversation())


def test_500_idle_connections_leave_the_page_to_others(tmp_path: Path) -> None:
    limits = ConnectionLimits(connections=50, request_seconds=0.5)

    async def conversation() -> None:
        async with serving(page(tmp_path), limits=limits) as address:
            port = int(address.rpartition(":")[2])
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(500)]
            crowd = [reader for reader, _ in idle[60:]]
            ended = await asyncio.wait_for(asyncio.gather(*(_end(reader) for reader in crowd)), 10)
            assert len(ended) == 440  # these are rejected at once, the others after the timeout
            await asyncio.wait_for(asyncio.gather(*(_end(reader) for reader, _ in idle)), 10)
            assert await status(address) == 200
            for _, writer in idle:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in idle), return_exceptions=True)

    asyncio.run(conversation())


async def _end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""
