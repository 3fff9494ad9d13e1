"""HTTP service of the live page."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from evorl.live.live_page import LivePage
from evorl.sockets.http_server import HttpServer
from evorl.sockets.socket_server import ConnectionLimits


@contextlib.asynccontextmanager
async def serving(
    page: LivePage, port: int = 0, tls: ssl.SSLContext | None = None, limits: ConnectionLimits | None = None
) -> AsyncIterator[str]:
    """Serve the page within a context.

    Args:
        page: page to serve, at the address ``page.guard.bind``.
        port: port; 0 selects a free port.
        tls: see ``evorl.sockets.access.tls_context``; ``None`` disables TLS.
        limits: limits of connections; ``None`` for 256 simultaneous connections.

    Yields:
        The URL of the page, such as ``http://127.0.0.1:7002``.

    Raises:
        ValueError: the address cannot be used, or other machines could connect without a token.
    """
    bind = page.guard.bind
    server = HttpServer(page.application(), limits or ConnectionLimits(connections=256))
    try:
        await server.start(bind, port, page.guard.token, tls)
    except OSError as error:
        reason = "another program listens there" if "in use" in str(error) else str(error)
        raise ValueError(f"cannot listen on {bind}, port {port}: {reason}. Change bind= or port= (0: any).") from error
    try:
        yield f"{'http' if tls is None else 'https'}://{server.sockets.url_host}"
    finally:
        await server.stop()
