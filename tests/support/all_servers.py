"""All servers, each at a free port of this machine with the same limits: RLX, web port, live page, parameters."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from evorl.parameter_server.wire import CommandServer
from evorl.serving.connections import RlxServer
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.web import WebServer
from evorl.sockets.socket_server import ConnectionLimits
from tests.serving.test_switchboard import SwitchboardSetup
from tests.support.parameter_wire import counting_commands

SERVERS = ("rlx", "web", "page", "parameters")
HTTP_SERVERS = ("web", "page")


@contextlib.asynccontextmanager
async def running(name: str, request_seconds: float = 10.0, **settings: Any) -> AsyncIterator[int]:
    """Within: the server is there; its port."""
    if name in ("rlx", "web"):
        own = ServeSettings(bind="127.0.0.1:0", web="127.0.0.1:0", hello_seconds=request_seconds, **settings)
        server = (RlxServer if name == "rlx" else _web)(own, SwitchboardSetup(num_rows=8).switchboard)
        await server.start()
        try:
            yield server.sockets.address[1]
        finally:
            await server.stop()
        return
    limits = ConnectionLimits(request_seconds=request_seconds)
    if name == "page":
        with tempfile.TemporaryDirectory() as folder:
            page = LivePage(WatchedRuns([], folder), MetricsStore())
            async with serving(page, limits=limits) as address:
                yield int(address.rpartition(":")[2])
        return
    commands = CommandServer(counting_commands(3).table(), limits=limits)
    address = await commands.start()
    try:
        yield int(address.rpartition(":")[2])
    finally:
        await commands.stop()
        assert commands.failure is None


def _web(settings: ServeSettings, switchboard: Any) -> WebServer:
    metadata: Mapping[str, Any] = {"policy": "test"}
    return WebServer(settings, switchboard, metadata)


async def all_it_says(port: int, sent: bytes, seconds: float = 10.0) -> bytes:
    """What a server answers until it closes the connection; fails where it does not within so many seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            async with asyncio.timeout(seconds):
                while part := await reader.read(2**16):
                    said += part
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return said
