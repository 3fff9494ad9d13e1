"""The base of all servers: it listens, limits connections, ends slow ones, and shuts down.

Each protocol (RLX, HTTP, commands of a parameter server) is an ``asyncio.Protocol`` behind a ``GuardedConnection``,
which passes on what comes. A connection is closed when it does not complete its first request in time, when it begins a
request and does not go on with it, when it is silent, when it does not read what it is sent, and when its protocol
fails. No fault of a client is more than one line of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from evorl.sockets.access import require_token_beyond_this_machine

REQUEST_SECONDS = 10.0  # from the beginning of a connection to the end of its first request
FRAME_SECONDS = 120.0  # from the first byte of a later request to its last one
WRITE_BUFFER_BYTES = 2**20  # that a client may leave unread
BACKLOG = 512
PARTING_SECONDS = 0.5  # that clients have to read the last answer where a server ends
_LOG = logging.getLogger("evorl.sockets")


@dataclasses.dataclass(frozen=True)
class ConnectionLimits:
    """Limits of every connection of a server.

    Attributes:
        connections: open at one time; the next ones are closed as soon as they are made.
        request_seconds: from the beginning of a connection, its TLS handshake included, to its first complete request.
        frame_seconds: from the first byte of a later request to its last one.
        idle_seconds: of silence between two requests; 0 for no limit.
    """

    connections: int = 1024
    request_seconds: float = REQUEST_SECONDS
    frame_seconds: float = FRAME_SECONDS
    idle_seconds: float = 0.0


class Patience:
    """Clock of one connection: tells when one of the times of ``ConnectionLimits`` is over.

    Args:
        limits: of the connection.
        now: seconds of the event loop's clock.

    Attributes:
        has_begun: whether the first request is complete; set by the protocol.
    """

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self._since = self._heard = now
        self._frame_began: float | None = None
        self.has_begun = False

    def note_request(self, now: float) -> None:
        """Note that a request is complete."""
        self._heard, self._frame_began = now, None

    def note_part(self, now: float) -> None:
        """Note that a part of a request has come, which is not complete."""
        self._frame_began = now if self._frame_began is None else self._frame_began

    def is_over(self, now: float) -> bool:
        """Return whether the connection is to be closed."""
        if not self.has_begun:
            return now - self._since > self._limits.request_seconds
        if self._frame_began is not None and now - self._frame_began > self._limits.frame_seconds:
            return True
        return 0 < self._limits.idle_seconds < now - self._heard


class Progress(Protocol):
    """State of a protocol's requests, by which the guard limits their times."""

    has_begun: bool  # whether the first request is complete, which shows the token
    is_within_request: bool  # whether a part of a request has come that is not complete
    num_requests: int  # complete ones


class GuardedConnection(asyncio.Protocol):
    """A connection that passes on what comes to a protocol, within limits.

    Args:
        server: that it belongs to.
        inner: the protocol. Where it has the attributes of ``Progress``, its times are limited here; else it limits
            them itself. Where it has ``refuse(message)``, a client for whom there is no room gets that message.
    """

    def __init__(self, server: SocketServer, inner: Any) -> None:
        self._server = server
        self._inner: Any = inner
        self._transport: Any = None
        self._patience: Patience | None = None
        self._unread_since: float | None = None
        self._num_requests = 0
        self._now = asyncio.get_running_loop().time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = transport
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        has_room = len(self._server.connections) < self._server.limits.connections
        self._server.connections.add(self)
        if not has_room and not hasattr(self._inner, "refuse"):
            self._inner = asyncio.Protocol()
            self.abort()
            return
        if hasattr(self._inner, "is_within_request"):
            self._patience = Patience(self._server.limits, self._now())
        self._inner.connection_made(transport)
        if not has_room:
            self._inner.refuse("this server has too many connections: try again later.")
            self.close()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._transport.is_closing():
            return
        inner, patience = self._inner, self._patience
        try:
            inner.data_received(data)
        except Exception as error:  # of the protocol: this client is ended, the others go on
            _LOG.warning("%s failed on what %s sent, and its connection ends: %r", self._server.name, self.peer, error)
            self.abort()
            return
        if patience is None:
            return
        patience.has_begun = inner.has_begun
        if inner.num_requests != self._num_requests:
            self._num_requests = inner.num_requests
            patience.note_request(self._now())
        if inner.is_within_request:
            patience.note_part(self._now())

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The client leaves much unread."""
        self._unread_since = self._now()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The client has read on."""
        self._unread_since = None
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._server.connections.discard(self)
        self._inner.connection_lost(exc)

    def end_if_overdue(self, now: float) -> None:
        """Close it where one of its times is over; end it at once where the client does not read."""
        unread_too_long = (
            self._unread_since is not None and now - self._unread_since > self._server.limits.frame_seconds
        )
        if unread_too_long or (self._transport.is_closing() and self.num_unread):
            self.abort()
        elif self._patience is not None and self._patience.is_over(now):
            self.close()

    @property
    def peer(self) -> str:
        """The address of the client, for the log."""
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a client"

    @property
    def num_unread(self) -> int:
        """Bytes that were sent and have not gone out: the client does not read them."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Send what is left to send, and end it."""
        self._transport.close()

    def abort(self) -> None:
        """End it, whatever is left to send."""
        self._transport.abort()


class SocketServer:
    """Listens, and guards connections.

    Args:
        make_protocol: makes the protocol of one connection.
        limits: of every connection.
        name: of the server, for the log.

    Attributes:
        connections: that are open.
        address: where it listens, ``(host, port)``, once it has started.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], limits: ConnectionLimits | None = None, name: str = "RLX"
    ) -> None:
        self.limits, self.name = limits or ConnectionLimits(), name
        self.connections: set[GuardedConnection] = set()
        self.address: tuple[str, int] = ("", 0)
        self._make_protocol = make_protocol
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Begin to listen.

        Args:
            host: name or number.
            port: 0 for any free one.
            token: that the protocol asks of its clients.
            tls: for encrypted connections.

        Returns:
            Host and port.

        Raises:
            ValueError: other machines could connect, and there is no token.
            OSError: the address is taken, or does not belong to this machine.
        """
        require_token_beyond_this_machine(host, token, host, "give one that clients have to show")
        handshake: Any = {} if tls is None else {"ssl_handshake_timeout": self.limits.request_seconds}
        self._server = await asyncio.get_running_loop().create_server(
            lambda: GuardedConnection(self, self._make_protocol()), host, port, ssl=tls, backlog=BACKLOG, **handshake
        )
        self.address = self._server.sockets[0].getsockname()[:2]
        self._sweeping = asyncio.create_task(self._sweep())
        return self.address

    @property
    def url_host(self) -> str:
        """Host and port as in URLs: ``[::1]:7001``."""
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.limits.request_seconds / 2))
            now = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                connection.end_if_overdue(now)

    async def stop_listening(self) -> None:
        """Stop accepting connections; open ones go on."""
        # A client that was let in a moment ago has its protocol some turns of the loop later; a listener that was
        # closed meanwhile would leave such a socket open for good.
        for _ in range(4):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Stop listening and end all connections; clients have a moment to read the last answer."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        await self.stop_listening()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PARTING_SECONDS):
                while self.connections:
                    await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
