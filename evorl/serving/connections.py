"""Clients of the RLX protocol over TCP: frames in, frames out, and the limits of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from evorl.serving.repeated_messages import RepeatedMessages
from evorl.serving.rlx import FrameReader, Limits, ProtocolError, encode, frame
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.session import Host, Refused, Session
from evorl.sockets.access import host_and_port, tls_context
from evorl.sockets.socket_server import ConnectionLimits, SocketServer

HELLO_BYTES = 4096  # of a message before init was understood


class MessageRate:
    """Counts the messages of a connection.

    Args:
        most: messages in a second; 0 for any number.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._window, self._count = -1.0, 0

    def take(self, now: float, num_messages: int = 1) -> None:
        """Count messages.

        Args:
            now: seconds of the event loop's clock.
            num_messages: that came together.

        Raises:
            ProtocolError: they are too many.
        """
        if now - self._window >= 1.0:
            self._window, self._count = now, 0
        self._count += num_messages
        if 0 < self._most < self._count:
            raise ProtocolError(f"more than max_messages_per_second={self._most:g} messages came in a second.")


def connection_limits(settings: ServeSettings) -> ConnectionLimits:
    """Return the limits of connections of any kind; there may be more than clients, for those that say nothing."""
    return ConnectionLimits(
        connections=2 * settings.max_clients + 16,
        request_seconds=settings.hello_seconds,
        idle_seconds=settings.idle_seconds,
    )


class RlxConnection(asyncio.Protocol):
    """One client; an exchange of messages, one at a time, for as long as it keeps the rules.

    Args:
        settings: of the server.
        host: answers the client.

    Attributes:
        has_begun: whether init was understood.
        num_requests: complete frames so far.
    """

    def __init__(self, settings: ServeSettings, host: Host) -> None:
        self._settings = settings
        self._reader = FrameReader(min(HELLO_BYTES, settings.max_frame))
        self._messages = RepeatedMessages(Limits(max_frame=settings.max_frame))
        self._rate = MessageRate(settings.max_messages_per_second)
        self._session = Session(host, self.send)
        self._transport: Any = None
        self._now = asyncio.get_running_loop().time
        self.has_begun = False
        self.num_requests = 0

    @property
    def is_within_request(self) -> bool:
        """Return whether a part of a frame has come."""
        return self._reader.is_within_frame

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes have come: any part of a frame, or several of them."""
        session = self._session
        try:
            for payload in self._reader.feed(data) if self.has_begun else self._payloads(data):
                self.num_requests += 1
                self._rate.take(self._now())
                session.receive(self._messages.decode(payload))
                if session.has_begun and not self.has_begun:
                    self.has_begun = True
                    self._reader = FrameReader(self._settings.max_frame)
        except ProtocolError as error:
            self.refuse(str(error))
            self._transport.close()
        except Refused:
            self._transport.close()

    def _payloads(self, data: bytes) -> Iterator[bytes]:
        """Of the frames in ``data``. Until init was understood one at a time: those after it may be larger."""
        start = 0
        while start < len(data) and not self.has_begun:
            end = data.find(b",", start) + 1 or len(data)  # every frame ends so
            yield from self._reader.feed(data[start:end])
            start = end
        yield from self._reader.feed(data[start:])

    def pause_writing(self) -> None:
        """The client does not read what it is sent: it is dropped."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._session.close()

    def refuse(self, message: str) -> None:
        """Tell the client why its connection ends."""
        self.send({"response": "error", "message": message})

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, where the connection is open."""
        if not self._transport.is_closing():
            self._transport.write(frame(encode(message)))


class RlxServer:
    """Listens for clients.

    Args:
        settings: where, and what is allowed.
        host: answers the clients.

    Attributes:
        sockets: that listen, with the connections and the address.
    """

    def __init__(self, settings: ServeSettings, host: Host) -> None:
        self._settings = settings
        self.sockets = SocketServer(lambda: RlxConnection(settings, host), connection_limits(settings), "RLX")

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: the address is taken, or does not belong to this machine.
            ValueError: the certificate cannot be used, or other machines could connect without a token.
        """
        settings = self._settings
        host, port = host_and_port(settings.bind, "serve.bind")
        tls = tls_context(settings.cert, settings.key, "serve.cert, serve.key")
        await self.sockets.start(host, port, settings.token, tls)

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        await self.sockets.stop()
