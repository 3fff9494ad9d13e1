"""Servers on free ports of this machine: commands of a parameter server in a thread, and each of evorl's servers."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from evorl.live.live_page import LivePage
from evorl.live.metrics_store import MetricsStore
from evorl.live.page_service import serving
from evorl.live.watched_runs import WatchedRuns
from evorl.ops.optimization import Optimizer
from evorl.parameter_server.commands import ParameterCommands
from evorl.parameter_server.update_rules import ParameterServerSettings, create
from evorl.parameter_server.wire import Command, CommandServer
from evorl.serving.connections import RlxServer
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.web import WebServer
from evorl.sockets.socket_server import ConnectionLimits
from evorl.types import PyTreeDict
from tests.serving.test_switchboard import SwitchboardSetup


@contextlib.contextmanager
def served(commands: Mapping[str, Command], bind: str = "127.0.0.1:0", **options: Any) -> Iterator[str]:
    """Serve these commands and yield the address; raise failures of the server at the end."""
    server, ready, context = CommandServer(commands, bind, **options), threading.Event(), {}

    async def run() -> None:
        context["loop"], context["end"] = asyncio.get_running_loop(), asyncio.Event()
        try:
            context["address"] = await server.start()
            ready.set()
            await context["end"].wait()
        finally:
            ready.set()
            await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield context["address"]
    finally:
        context["loop"].call_soon_threadsafe(context["end"].set)
        thread.join()
    if server.failure is not None:
        raise server.failure


def counting_commands(num_numbers: int, mode: str = "fifo", **options: Any) -> ParameterCommands:
    """Return commands whose parameters start at 0 and decrease by each push, so that applied pushes are countable."""
    settings = ParameterServerSettings(mode=mode, optimizer=Optimizer("sgd", 1.0))  # pyright: ignore[reportArgumentType]
    return ParameterCommands(settings, create(settings, PyTreeDict(w=jnp.zeros(num_numbers))), **options)


SERVERS = ("rlx", "web", "page", "parameters")
HTTP_SERVERS = ("web", "page")


@contextlib.asynccontextmanager
async def running(name: str, request_seconds: float = 10.0, **settings: Any) -> AsyncIterator[int]:
    """Run a server within the context and yield its port."""
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
    """Return all bytes that a server sends until it closes the connection; fail after ``seconds``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            async with asyncio.timeout(seconds):
                while part := await reader.read(2**16):
                    received += part
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return received
