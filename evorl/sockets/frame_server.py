"""Base of the TCP servers whose messages are frames: RLX (remote simulators), commands of the parameter server.

``FrameServer`` listens at an address, optionally with a token and TLS. ``FrameConnection`` tracks the progress of
one client for its timeouts, and disconnects a client that breaks the protocol.
"""

from __future__ import annotations

import abc
import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from evorl.sockets.access import host_and_port, is_same_secret
from evorl.sockets.socket_server import ConnectionLimits, SocketServer

HELLO_BYTES = 4096  # maximum frame size before a client has authenticated


class FrameConnection(asyncio.Protocol, abc.ABC):
    """Connection of one client; the protocol is defined by subclasses.

    Attributes:
        errors: exceptions of ``receive`` whose message is sent before the client is disconnected.
        has_begun: true if the client has authenticated.
        is_answering: true if the idle timeout is suspended, because the client waits for a response.
        num_requests: number of complete frames so far.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self) -> None:
        self.has_begun = self.is_answering = False
        self.num_requests = 0
        self._transport: Any = None

    @property
    @abc.abstractmethod
    def is_within_request(self) -> bool:
        """Return True if a part of an incomplete frame was received."""

    @abc.abstractmethod
    def receive(self, data: bytes) -> None:
        """Process received bytes: any part of a frame, or several frames."""

    @abc.abstractmethod
    def error_frame(self, message: str) -> bytes:
        """Return the frame of an error message."""

    def connection_made(self, transport: Any) -> None:
        """Store the transport of a new connection."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Process received bytes; disconnect a client that breaks the protocol."""
        try:
            self.receive(data)
        except self.errors as error:
            self.end(str(error))

    def send(self, data: bytes) -> None:
        """Send bytes if the connection is open."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def refuse(self, message: str) -> None:
        """Send an error message that states why the connection will be closed."""
        self.send(self.error_frame(message))

    def end(self, message: str) -> None:
        """Send an error message, then close the connection."""
        self.refuse(message)
        self._transport.close()


class FrameServer:
    """Listens for clients of a frame protocol.

    Args:
        make_connection: creates the protocol of one connection.
        bind: address and port, such as ``127.0.0.1:7001``; port 0 selects a free port.
        limits: limits of every connection.
        token: access token that the connections require; ``None`` for no authentication.
        tls: TLS context of encrypted connections; ``None`` for unencrypted ones.
        name: name of the server, for the log.
        setting: name of the setting that contains ``bind``, for error messages.

    Attributes:
        sockets: listening sockets, with their connections and address.
    """

    def __init__(
        self,
        make_connection: Callable[[], FrameConnection],
        bind: str,
        limits: ConnectionLimits,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        name: str = "RLX",
        setting: str = "bind",
    ) -> None:
        self._bind, self._setting, self._token, self._tls = bind, setting, token, tls
        self.sockets = SocketServer(make_connection, limits, name)

    async def start(self) -> str:
        """Start listening; return the address as ``host:port``.

        Raises:
            ValueError: the address is invalid, or other machines could connect without a token.
            OSError: the address is in use, or does not belong to this machine.
        """
        host, port = host_and_port(self._bind, self._setting)
        await self.sockets.start(host, port, self._token, self._tls)
        return self.sockets.url_host

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        await self.sockets.stop()


def refused_token(message: Mapping[str, Any], token: str | None, first_message: str) -> str | None:
    """Return the error message for a client's first message if it lacks the right token; ``None`` if authenticated.

    Args:
        message: first message of the client; its entry ``token`` is compared.
        token: access token of the server; ``None`` for no authentication.
        first_message: description of the message that must contain the token, for the error message.
    """
    if token is None or is_same_secret(message.get("token"), token):
        return None
    received = "another token" if message.get("token") else "no token"
    return f"this server requires its token in {first_message}, got {received}: send the token of this server."
