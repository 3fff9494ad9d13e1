"""Minimum cost of a message server: asyncio echoes every message.

Settings: ``carrier`` (rlx: unparsed bytes; websocket: messages by aiohttp), ``clients`` (64).
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve
from benchmarks.speed.serving import loads, message_cpu_seconds, messages_as


class Echo(asyncio.Protocol):
    """Echoes bytes."""

    def __init__(self, counted: list[int]) -> None:
        self._counted = counted
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._counted[0] += 1
        self._transport.write(data)


async def listen_to_bytes(counted: list[int]) -> int:
    """Return the port on which bytes are echoed."""
    server = await asyncio.get_running_loop().create_server(lambda: Echo(counted), "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


async def listen_to_messages(counted: list[int]) -> int:
    """Return the port on which WebSocket messages are echoed."""
    from aiohttp import web

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for frame in socket:
            counted[0] += 1
            await socket.send_bytes(frame.data)
        return socket

    app = web.Application()
    app.router.add_get("/ws", talk)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner.addresses[0][1]


def prepare() -> Any:
    settings = read_settings()
    carrier, counted = settings["carrier"], [0]
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    listen = listen_to_bytes if carrier == "rlx" else listen_to_messages
    port = asyncio.run_coroutine_threadsafe(listen(counted), loop).result()
    load = (("127.0.0.1", port), carrier, settings.get("clients", 64), messages_as(carrier))

    def measure() -> Reading:
        with loads(load):
            return message_cpu_seconds(lambda: counted[0])

    return measure


if __name__ == "__main__":
    serve(prepare, "aiohttp")
