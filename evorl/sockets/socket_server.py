"""Base server: listens, limits connections, closes slow ones, and shuts down gracefully.

Each protocol (RLX, HTTP, commands of a parameter server) is an ``asyncio.Protocol`` wrapped in a ``GuardedConnection``,
which forwards events to the protocol. A connection is closed after an exception of its protocol, and after timeouts of
its first request, a later request, silence, or unread responses. An error of a client causes at most one log line.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from evorl.sockets.access import require_token_beyond_this_machine

REQUEST_SECONDS = 10.0  # timeout from the beginning of a connection to the end of its first request
FRAME_SECONDS = 120.0  # timeout from the first to the last byte of a later request
WRITE_BUFFER_BYTES = 2**20  # size of the buffer of responses that a client has not read
BACKLOG = 512
PARTING_SECONDS = 0.5  # time for clients to read the last response at shutdown
_LOG = logging.getLogger("evorl.sockets")


@dataclasses.dataclass(frozen=True)
class ConnectionLimits:
    """Limits of every connection of a server.

    Attributes:
        connections: maximum number of open connections; additional ones are closed immediately.
        request_seconds: seconds from the start of a connection, with its TLS handshake, to its first complete request.
        frame_seconds: seconds from the first to the last byte of a later request; also the longest time in which a
            client may leave responses unread.
        idle_seconds: maximum seconds without a request or a pending response; 0 for no timeout.
    """

    connections: int = 1024
    request_seconds: float = REQUEST_SECONDS
    frame_seconds: float = FRAME_SECONDS
    idle_seconds: float = 0.0


class Patience:
    """Tracks the timeouts in ``ConnectionLimits`` for a client since ``now``, on the event loop's clock.

    Attributes:
        has_begun: true if the first request is complete; set by the protocol.
    """

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self._since = self._heard = now
        self._frame_began: float | None = None
        self.has_begun = False

    def note_request(self, now: float) -> None:
        """Record that a request is complete."""
        self._heard, self._frame_began = now, None

    def note_part(self, now: float) -> None:
        """Record that a part of an incomplete request was received."""
        self._frame_began = now if self._frame_began is None else self._frame_began

    def is_over(self, now: float) -> bool:
        """Return True if a timeout has expired."""
        if not self.has_begun:
            return now - self._since > self._limits.request_seconds
        if self._frame_began is not None and now - self._frame_began > self._limits.frame_seconds:
            return True
        return 0 < self._limits.idle_seconds < now - self._heard


class Progress(Protocol):
    """Attributes of a protocol whose timeouts ``GuardedConnection`` enforces.

    Attributes:
        has_begun: true if the first request, which contains the token, is complete.
        is_within_request: true if a part of an incomplete request was received.
        is_answering: true if the client waits for a response, which suspends the timeout of silence.
        num_requests: number of complete requests.
    """

    has_begun: bool
    is_within_request: bool
    is_answering: bool
    num_requests: int


class GuardedConnection(asyncio.Protocol):
    """Forwards the events of a connection to a protocol, and enforces limits.

    Args:
        server: server of the connection.
        inner: wrapped protocol. If it has the attributes of ``Progress``, request timeouts are enforced here, otherwise
            by the protocol. If it has ``refuse(message)``, clients beyond the limit receive a message before they are
            disconnected.
    """

    def __init__(self, server: SocketServer, inner: Any) -> None:
        self._server = server
        self._inner: Any = inner
        self._transport: Any = None
        self._patience: Patience | None = None
        self._unread_since: float | None = None
        self._progress = (0, False)
        self._bytes_left, self._refuses = math.inf, lambda: False
        self._now = asyncio.get_running_loop().time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Configure a new connection; close it if the server has too many connections."""
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
        """Forward received bytes, and record the progress of requests."""
        if self._transport.is_closing():
            return
        self._bytes_left -= len(data)
        if self._bytes_left < 0 and self._refuses():
            return
        try:
            self._inner.data_received(data)
        except Exception as error:  # raised by the protocol: only this client is disconnected
            _LOG.warning("%s failed on data from %s and closes the connection: %r", self._server.name, self.peer, error)
            self.abort()
            return
        self._note_progress(self._now())

    def limit_bytes(self, limit: int, refuses: Callable[[], bool]) -> None:
        """Drop the data that is received after another ``limit`` bytes while ``refuses()`` returns True."""
        self._bytes_left, self._refuses = limit, refuses

    def _note_progress(self, now: float) -> None:
        """Record the progress of requests."""
        inner, patience = self._inner, self._patience
        if patience is None:
            return
        patience.has_begun = inner.has_begun
        progress = (inner.num_requests, inner.is_answering)
        if progress != self._progress or inner.is_answering:  # the idle timeout starts after the response
            self._progress = progress
            patience.note_request(now)
        if inner.is_within_request:
            patience.note_part(now)

    def eof_received(self) -> bool | None:
        """Forward the end of the client's data."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read its responses."""
        self._unread_since = self._now()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Stop the timeout of a client that reads again."""
        self._unread_since = None
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a closed connection."""
        self._server.connections.discard(self)
        self._inner.connection_lost(exc)

    def end_if_overdue(self, now: float) -> None:
        """Close the connection if a timeout expired by ``now``, in seconds; abort it if the client does not read."""
        self._note_progress(now)  # a protocol may begin a queued request without new data
        unread_too_long = (
            self._unread_since is not None and now - self._unread_since > self._server.limits.frame_seconds
        )
        if unread_too_long or (self._transport.is_closing() and self.num_unread):
            self.abort()
        elif self._patience is not None and self._patience.is_over(now):
            self.close()

    @property
    def peer(self) -> str:
        """Address of the client, for the log."""
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "a client"

    @property
    def num_unread(self) -> int:
        """Number of bytes in the write buffer that the client has not read."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Flush the write buffer, then close the connection."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._transport.abort()


class SocketServer:
    """Listens for connections and enforces their limits.

    Args:
        make_protocol: creates the protocol of one connection.
        limits: limits of every connection; ``None`` for the defaults of ``ConnectionLimits``.
        name: name of the server, for the log.

    Attributes:
        connections: open connections.
        address: ``(host, port)`` of the listening socket; valid after ``start``.
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
        """Start listening, and return host and port of the listening socket.

        Args:
            host: host name or IP address.
            port: port; 0 selects a free port.
            token: access token that the protocol requires of clients; ``None`` for no authentication.
            tls: TLS context of encrypted connections; ``None`` for unencrypted ones.

        Raises:
            ValueError: other machines could connect without a token.
            OSError: the address is in use, or does not belong to this machine.
        """
        require_token_beyond_this_machine(host, token, host, "set a token that clients must send")
        handshake: Any = {} if tls is None else {"ssl_handshake_timeout": self.limits.request_seconds}
        self._server = await asyncio.get_running_loop().create_server(
            lambda: GuardedConnection(self, self._make_protocol()), host, port, ssl=tls, backlog=BACKLOG, **handshake
        )
        self.address = self._server.sockets[0].getsockname()[:2]
        self._sweeping = asyncio.create_task(self._sweep())
        return self.address

    @property
    def url_host(self) -> str:
        """Host and port as in a URL, such as ``127.0.0.1:7001`` or ``[::1]:7001``."""
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.limits.request_seconds / 2))
            now = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                connection.end_if_overdue(now)

    async def stop_listening(self) -> None:
        """Stop accepting clients; open connections remain."""
        # An accepted client gets its protocol a few iterations of the event loop later. If the listener were closed
        # before then, the client's socket would stay open forever.
        for _ in range(4):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Stop listening and close all connections; clients have ``PARTING_SECONDS`` to read the last responses."""
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
