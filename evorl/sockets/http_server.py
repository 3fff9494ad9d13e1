"""HTTP server for an aiohttp application, with connection limits and one log line per malformed request.

Requests with bytes that are not UTF-8 in the path or in a header are rejected before the application reads them.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evorl.sockets.socket_server import ConnectionLimits, SocketServer

if TYPE_CHECKING:
    from aiohttp import web

_LOG = logging.getLogger("evorl.sockets.http")
_LONGEST_LINE = 300  # characters of an error in the log


class HttpServer:
    """Serves an aiohttp application.

    Args:
        application: aiohttp application; ``start`` and ``stop`` run its start-up and clean-up callbacks.
        limits: limits of connections; ``None`` for the defaults of ``ConnectionLimits``.

    Attributes:
        sockets: listening sockets, with their address.
    """

    def __init__(self, application: web.Application, limits: ConnectionLimits | None = None) -> None:
        from aiohttp import web

        limits, self._web = limits or ConnectionLimits(), web
        # keepalive_timeout counts from the start of a connection or from its last response.
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_OneLine(_LOG),
            keepalive_timeout=limits.request_seconds,
            lingering_time=min(limits.request_seconds, 2.0),
            shutdown_timeout=1.0,
        )
        self.sockets = SocketServer(self._protocol, limits, "HTTP")

    def _protocol(self) -> Any:
        assert self._runner.server is not None, "the application is set up before the server listens"
        return self._runner.server()

    async def start(self, host: str, port: int, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        """Start listening; see ``SocketServer.start`` for arguments and errors."""
        await self._runner.setup()
        server: Any = self._runner.server
        server.request_handler = _utf8_only(self._web, server.request_handler)
        try:
            await self.sockets.start(host, port, token, tls)
        except BaseException:
            await self._runner.cleanup()
            raise

    async def stop(self) -> None:
        """Stop listening, finish open requests, then close all connections."""
        await self.sockets.stop_listening()
        with contextlib.suppress(ConnectionError):
            await self._runner.cleanup()
        await self.sockets.stop()


def _utf8_only(web: Any, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a handler of ``aiohttp.web`` that rejects requests whose path or headers are not UTF-8.

    aiohttp decodes such bytes to surrogates, which no response, log or file can contain, and quotes the header
    ``Expect`` before any middleware runs.
    """

    async def handle(request: Any) -> Any:
        texts = [("path", request.raw_path), *request.headers.items()]  # a header may occur twice
        if wrong := [name for name, text in texts if not _is_utf8(text)]:
            return web.Response(status=400, text=f"{ascii(wrong[0])[1:-1]} is not UTF-8.\n")
        return await handler(request)

    return handle


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _OneLine(logging.LoggerAdapter):
    """Logger that writes one line for a malformed request, and a traceback for an error of this program."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log an exception with its traceback, or a malformed request in one line."""
        if not self._warns(exc_info, *args):
            super().exception(msg, *args, exc_info=exc_info, **more)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **more: Any) -> None:
        """Log a detail, or a malformed request, such as TLS in place of HTTP, in one line."""
        if not self._warns(exc_info, *args):
            super().debug(msg, *args, exc_info=exc_info, **more)

    def _warns(self, error: Any, *args: object) -> bool:
        """Log ``error`` and return True if it is a malformed request."""
        from aiohttp import web
        from aiohttp.http_exceptions import HttpProcessingError

        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return False
        reason = " ".join(str(error).split())
        peer = args[0] if args else "a client"
        self.warning("rejected a request from %s: %s", peer, ascii(reason)[:_LONGEST_LINE])
        return True
