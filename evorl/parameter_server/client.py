"""Client of a parameter server, for workers: reconnects after a lost connection and repeats unanswered requests."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, Self

from evorl.parameter_server.frames import (
    LENGTHS,
    CommandRefused,
    WireError,
    frame,
    lengths,
    parsed_header,
)
from evorl.sockets.access import host_and_port

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 6.0  # seconds between two connection attempts
_MAX_CONFIG = 1 << 20  # bytes of JSON
_RESPONSE_SECONDS = 600.0  # timeout of a response in seconds: the server may evaluate first


class ServerLost(ConnectionError):
    """Raised when all attempts to reach the server failed."""


class ParameterClient:
    """Calls the commands of a parameter server.

    Pushes are numbered. A push that is repeated because its response was lost with the connection is answered but not
    applied again.

    Args:
        address: ``host:port`` of the server.
        worker: name of the worker; a random suffix is added, so that a restarted worker counts as a new one.
        token: access token of the server.
        attempts: maximum number of connection attempts per request.
        tls: TLS context of encrypted connections.

    Raises:
        ValueError: the address is invalid.
    """

    def __init__(
        self,
        address: str,
        worker: str = "worker",
        token: str | None = None,
        attempts: int = 10,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.worker = f"{worker}-{secrets.token_hex(6)}"
        self._host, self._port = host_and_port(address, "address")
        self._token, self._attempts, self._tls = token, attempts, tls
        self._pauses = random.Random(self.worker)  # random, so that workers do not reconnect all at once
        self._socket: socket.socket | None = None
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def n_step(self) -> dict[str, Any]:
        """Return ``step``, ``updates``, ``pushes``, ``workers`` and ``score`` of the server, and its settings."""
        return self.request({"command": "n_step"})[0]

    def checkpoint(self) -> dict[str, Any]:
        """Request a checkpoint; ``saved`` in the response is the number of pushes that it contains."""
        return self.request({"command": "checkpoint"})[0]

    def config(self) -> dict[str, Any]:
        """Return the config of the training that the server provides; its content is not checked.

        Raises:
            CommandRefused: the server provides no config, or the response is not a JSON object.
        """
        body = self.request({"command": "config"})[1]
        try:
            config = json.loads(body) if len(body) <= _MAX_CONFIG else None
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise CommandRefused(f"The config that the server at {self.address} sent is not a JSON object.")
        return config

    def pull(self, rest: bool = False) -> tuple[dict[str, Any], bytes]:
        """Return the server's ``step``, ``updates`` and parameters; with ``rest`` also the other agent arrays."""
        return self.request({"command": "pull", "rest": rest})

    def push(self, body: bytes, *, step: int, updates: int, steps: int, **statistics: Any) -> dict[str, Any]:
        """Send a gradient or a delta; ``accepted`` in the response is true if it was applied.

        Args:
            body: serialized gradient or delta, followed by the other arrays of the agent.
            step: ``step`` of the server in the last pull.
            updates: ``updates`` of the server in the last pull.
            steps: number of environment steps that the push covers.
            **statistics: ``metrics``, numbers by name, and ``episodes``.
        """
        self._sequence += 1
        numbers = {"sequence": self._sequence, "step": step, "updates": updates, "steps": steps}
        return self.request({"command": "push", "worker": self.worker, **numbers, **statistics}, body)[0]

    def request(self, header: Mapping[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a command and return the response.

        Raises:
            CommandRefused: the server rejected the command; with its error message.
            ServerLost: the server cannot be reached.
        """
        message = frame(header, body)
        for attempt in range(self._attempts):
            try:
                answer, out = self._exchange(message)
            except (OSError, WireError) as error:
                self.close()
                if attempt + 1 == self._attempts:
                    raise ServerLost(
                        f"No parameter server answers at {self.address} after {self._attempts} attempts "
                        f"({error or type(error).__name__}): is it running?"
                    ) from error
                longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
                time.sleep(self._pauses.uniform(longest / 2, longest))
            else:
                if "error" in answer:
                    raise CommandRefused(str(answer["error"]))
                return answer, out
        raise ValueError(f"attempts must be at least 1, got {self._attempts}.")

    def close(self) -> None:
        """Close the connection; the next request reconnects."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _exchange(self, message: bytes) -> tuple[dict[str, Any], bytes]:
        if self._socket is None:
            self._socket = self._connected()
            self._socket.sendall(frame({"command": "n_step", "token": self._token or ""}))
            greeting, _ = self._answer(self._socket)
            if "error" in greeting:
                self.close()
                return greeting, b""
        self._socket.sendall(message)
        return self._answer(self._socket)

    def _connected(self) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), timeout=_RESPONSE_SECONDS)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                return self._tls.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _answer(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
        header, body = lengths(_received(connection, LENGTHS.size))
        return parsed_header(_received(connection, header)), _received(connection, body)


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the server closed the connection")
        view = view[count:]
    return bytes(data)
