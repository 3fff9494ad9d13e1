"""RLX server over TCP: connections, their frames, and their rate and size limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from evorl.serving.repeated_messages import RepeatedMessages
from evorl.serving.rlx import FrameReader, Limits, ProtocolError, encode, frame
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.session import Host, Refused, Session
from evorl.sockets.access import tls_context
from evorl.sockets.frame_server import HELLO_BYTES, FrameConnection, FrameServer
from evorl.sockets.socket_server import ConnectionLimits


class MessageRate:
    """Limits the number of messages per second of a connection to ``limit``; 0 for no limit."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._window, self._count = -1.0, 0

    def take(self, now: float, num_messages: int = 1) -> None:
        """Count messages received at the time ``now`` of the event loop's clock, in seconds.

        Raises:
            ProtocolError: the limit is exceeded.
        """
        if now - self._window >= 1.0:
            self._window, self._count = now, 0
        self._count += num_messages
        if 0 < self._limit < self._count:
            raise ProtocolError(
                f"received more than max_messages_per_second={self._limit:g} messages in one second: send fewer."
            )


def connection_limits(settings: ServeSettings) -> ConnectionLimits:
    """Return the connection limits; more connections than ``max_clients`` are allowed, as some never send ``init``."""
    return ConnectionLimits(
        connections=2 * settings.max_clients + 16,
        request_seconds=settings.hello_seconds,
        idle_seconds=settings.idle_seconds,
    )


class RlxConnection(FrameConnection):
    """Connection of a client: reads frames, passes messages to a session of ``host``, and sends the responses."""

    errors = (ProtocolError,)

    def __init__(self, settings: ServeSettings, host: Host) -> None:
        super().__init__()
        self._settings = settings
        self._reader = FrameReader(min(HELLO_BYTES, settings.max_frame))
        self._messages = RepeatedMessages(Limits(max_frame=settings.max_frame))
        self._rate = MessageRate(settings.max_messages_per_second)
        self._session = Session(host, self.reply)
        self._now = asyncio.get_running_loop().time

    @property
    def is_within_request(self) -> bool:
        return self._reader.is_within_frame

    def receive(self, data: bytes) -> None:
        session = self._session
        try:
            for payload in self._reader.feed(data) if self.has_begun else self._payloads(data):
                self.num_requests += 1
                self._rate.take(self._now())
                session.receive(self._messages.decode(payload))
                self.is_answering = session.is_waiting
                if session.has_begun and not self.has_begun:
                    self.has_begun = True
                    self._reader = FrameReader(self._settings.max_frame)
        except Refused:  # the session has sent the reason
            self._transport.close()

    def _payloads(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads in ``data``; until a valid init, frame by frame, because later frames may be larger."""
        start = 0
        while start < len(data) and not self.has_begun:
            end = data.find(b",", start) + 1 or len(data)  # every frame ends with a comma
            yield from self._reader.feed(data[start:end])
            start = end
        yield from self._reader.feed(data[start:])

    def pause_writing(self) -> None:
        """Drop a client that does not read its responses."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the session of a client that has disconnected."""
        self._session.close()

    def error_frame(self, message: str) -> bytes:
        return frame(encode({"response": "error", "message": message}))

    def reply(self, message: dict[str, Any]) -> None:
        """Send a message if the connection is open."""
        self.is_answering = self._session.is_waiting
        self.send(frame(encode(message)))


class RlxServer(FrameServer):
    """Listens for RLX clients.

    Args:
        settings: address, token, TLS files and limits.
        host: answers the clients.

    Raises:
        ValueError: the certificate is invalid.
    """

    def __init__(self, settings: ServeSettings, host: Host) -> None:
        super().__init__(
            lambda: RlxConnection(settings, host),
            settings.bind,
            connection_limits(settings),
            token=settings.token,
            tls=tls_context(settings.cert, settings.key, "serve.cert, serve.key"),
            name="RLX",
            setting="serve.bind",
        )
