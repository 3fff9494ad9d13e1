"""The live page at an address: sockets, TLS, connections that are too many or never ask."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from evorl.live.live_page import LivePage

if TYPE_CHECKING:
    from aiohttp import web

MOST_CONNECTIONS = 256
SECONDS_TO_ASK = 15.0  # from the beginning of a connection, or the end of an answer, to the end of a request's headers


@contextlib.asynccontextmanager
async def serving(
    page: LivePage, port: int = 0, tls: ssl.SSLContext | None = None, seconds_to_ask: float = SECONDS_TO_ASK
) -> AsyncIterator[str]:
    """Within: the page is there.

    Args:
        page: its guard says on which address.
        port: 0 for one that is free.
        tls: see ``tls_context``; ``None`` for none.
        seconds_to_ask: a connection that has not asked by then is closed.

    Yields:
        The address, ``http://127.0.0.1:7002``.

    Raises:
        ValueError: nothing can listen there; in words.
    """
    from aiohttp import web

    runner = web.AppRunner(page.application(), access_log=None, keepalive_timeout=seconds_to_ask, shutdown_timeout=2.0)
    await runner.setup()
    try:
        server = await _listen(runner, page.guard.bind, port, tls)
        try:
            host, number = server.sockets[0].getsockname()[:2]
            yield f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{number}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, bind: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
    handlers = runner.server
    if handlers is None:
        raise RuntimeError("the runner is set up before it listens.")

    def connection() -> asyncio.BaseProtocol:
        return handlers() if len(handlers.connections) < MOST_CONNECTIONS else _Closed()

    try:
        return await asyncio.get_running_loop().create_server(connection, bind, port, ssl=tls)
    except OSError as error:
        told = "another program listens there" if "in use" in str(error) else str(error)
        raise ValueError(f"cannot listen on {bind}, port {port}: {told}. Give another port=, or port=0.") from error


class _Closed(asyncio.Protocol):
    """A connection that ends as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
