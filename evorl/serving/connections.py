"""Clients of the RLX protocol over TCP: frames in, frames out, and what nobody may do to a server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

from evorl.serving.repeated_messages import RepeatedMessages
from evorl.serving.rlx import FrameReader, Limits, ProtocolError, encode, frame
from evorl.serving.serve_settings import ServeSettings, host_and_port
from evorl.serving.session import Host, Refused, Session

HELLO_BYTES = 4096  # of a message before init was understood
WRITE_BUFFER_BYTES = 2**20  # that a client may leave unread
BACKLOG = 512
PARTING_SECONDS = 0.5  # that clients have to read what was sent last, where a server ends


class Watched:
    """What every connection is watched for, whatever carries it: silence, and too many messages.

    Args:
        settings: of the server.
        now: seconds of the event loop's clock.
    """

    def __init__(self, settings: ServeSettings, now: float) -> None:
        self._settings = settings
        self._since, self._heard, self._window, self._count = now, now, now, 0
        self.has_begun = False

    def note(self, now: float, num_messages: int) -> bool:
        """Take note of messages; whether they were too many."""
        self._heard = now
        if now - self._window >= 1.0:
            self._window, self._count = now, 0
        self._count += num_messages
        return 0 < self._settings.max_messages_per_second < self._count

    def is_too_silent(self, now: float) -> bool:
        """Whether it has not begun in time, or says nothing any more."""
        if not self.has_begun:
            return now - self._since > self._settings.hello_seconds
        return 0 < self._settings.idle_seconds < now - self._heard


class RlxConnection(asyncio.Protocol):
    """One client; an exchange of messages, one at a time, for as long as it keeps the rules.

    Args:
        server: that it belongs to.
    """

    def __init__(self, server: RlxServer) -> None:
        self._server = server
        self._reader = FrameReader(min(HELLO_BYTES, server.settings.max_frame))
        self._messages = RepeatedMessages(Limits(max_frame=server.settings.max_frame))
        self._session = Session(server.host, self.send)
        self.watched: Watched | None = None
        self._transport: Any = None
        self._now = asyncio.get_running_loop().time

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.watched = Watched(self._server.settings, self._now())
        if not self._server.let_in(self):
            self.send({"response": "error", "message": "this server has too many connections: try again later."})
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: any part of a frame, or several of them."""
        watched, session = self.watched, self._session
        if watched is None or self._transport.is_closing():
            return
        try:
            for payload in self._reader.feed(data) if watched.has_begun else self._payloads(data, watched):
                if watched.note(self._now(), 1):
                    most = self._server.settings.max_messages_per_second
                    raise ProtocolError(f"more than max_messages_per_second={most:g} messages came in a second.")
                session.receive(self._messages.decode(payload))
                if session.has_begun and not watched.has_begun:
                    watched.has_begun = True
                    self._reader = FrameReader(self._server.settings.max_frame)
        except ProtocolError as error:
            self.send({"response": "error", "message": str(error)})
            self.close()
        except Refused:
            self.close()

    def _payloads(self, data: bytes, watched: Watched) -> Iterator[bytes]:
        """Of the frames in ``data``. Until init was understood one at a time: those after it may be larger."""
        start = 0
        while start < len(data) and not watched.has_begun:
            end = data.find(b",", start) + 1 or len(data)  # every frame ends so
            yield from self._reader.feed(data[start:end])
            start = end
        yield from self._reader.feed(data[start:])

    def pause_writing(self) -> None:
        """The client does not read what it is sent: it is dropped."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._session.close()
        self._server.let_out(self)

    def close(self) -> None:
        """Send what is left to send, and end it."""
        self._transport.close()

    def abort(self) -> None:
        """End it, whatever is left to send."""
        self._transport.abort()

    @property
    def num_unread(self) -> int:
        """Bytes that were sent and have not gone out: the client does not read them."""
        return self._transport.get_write_buffer_size()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, where the connection is open."""
        if not self._transport.is_closing():
            self._transport.write(frame(encode(message)))


class RlxServer:
    """Listens for clients.

    Args:
        settings: where, and what is allowed.
        host: who answers them.

    Attributes:
        connections: that are open.
        address: where it listens, ``(host, port)``, once it has started.
    """

    def __init__(self, settings: ServeSettings, host: Host) -> None:
        self.settings, self.host = settings, host
        self.connections: set[RlxConnection] = set()
        self.address: tuple[str, int] = ("", 0)
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: the address is taken, or is none of this machine.
            ValueError: the certificate cannot be used.
        """
        host, port = host_and_port(self.settings.bind, "serve.bind")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: RlxConnection(self), host, port, ssl=tls_context(self.settings), backlog=BACKLOG
        )
        self.address = self._server.sockets[0].getsockname()[:2]
        self._sweeping = asyncio.create_task(self._sweep())

    def let_in(self, connection: RlxConnection) -> bool:
        """Count a connection; whether there was room. Some more than clients, for those that come and say nothing."""
        self.connections.add(connection)
        return len(self.connections) <= 2 * self.settings.max_clients + 16

    def let_out(self, connection: RlxConnection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.settings.hello_seconds / 2))
            now = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                if connection.watched is not None and connection.watched.is_too_silent(now):
                    connection.close()

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self._server is not None:
            self._server.close()
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


def tls_context(settings: ServeSettings) -> ssl.SSLContext | None:
    """What encrypts connections; ``None`` where nothing does.

    Raises:
        ValueError: the files are no certificate and key; in words.
    """
    if settings.cert is None or settings.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.cert, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"serve.cert={settings.cert} and serve.key={settings.key} are no certificate with its key: {error}."
        ) from error
    return context
