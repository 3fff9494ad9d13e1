"""HTTP on the base of all servers: an application of aiohttp whose clients' faults are one line of the log each."""

from __future__ import annotations

import contextlib
import logging
import ssl
from typing import TYPE_CHECKING, Any

from evorl.sockets.socket_server import ConnectionLimits, SocketServer

if TYPE_CHECKING:
    from aiohttp import web

_LOG = logging.getLogger("evorl.sockets.http")
_LONGEST_LINE = 300  # characters of a fault in the log


class HttpServer:
    """Serves an application.

    Args:
        application: of aiohttp; its start-up and clean-up run with the server's.
        limits: of connections.

    Attributes:
        sockets: that listen, with the address.
    """

    def __init__(self, application: web.Application, limits: ConnectionLimits | None = None) -> None:
        from aiohttp import web

        limits = limits or ConnectionLimits()
        # aiohttp closes a connection that has not asked by then, since its beginning or since its last answer.
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
        """Begin to listen; see ``SocketServer.start`` for arguments and errors."""
        await self._runner.setup()
        try:
            await self.sockets.start(host, port, token, tls)
        except BaseException:
            await self._runner.cleanup()
            raise

    async def stop(self) -> None:
        """Stop listening, let requests that are being answered end, then end all connections."""
        await self.sockets.stop_listening()
        with contextlib.suppress(ConnectionError):
            await self._runner.cleanup()
        await self.sockets.stop()


class _OneLine(logging.LoggerAdapter):
    """Logs a malformed request in one line; an error of this program comes with its traceback."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log an error."""
        if not self._log_malformed(exc_info, *args):
            super().exception(msg, *args, exc_info=exc_info, **more)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **more: Any) -> None:
        """Log a detail; what is no HTTP at all, such as TLS, comes here too."""
        if not self._log_malformed(exc_info, *args):
            super().debug(msg, *args, exc_info=exc_info, **more)

    def _log_malformed(self, error: Any, *args: object) -> bool:
        """Log an error of a malformed request; return whether it is one."""
        from aiohttp import web
        from aiohttp.http_exceptions import HttpProcessingError

        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return False
        fault = " ".join(str(error).split())
        peer = args[0] if args else "a client"
        self.warning("a request of %s is refused: %s", peer, ascii(fault)[:_LONGEST_LINE])
        return True
