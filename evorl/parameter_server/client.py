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

from evorl.config.values import short_repr
from evorl.parameter_server.frames import LENGTHS, MAX_BODY, CommandRefused, WireError, frame, lengths, parsed_header
from evorl.sockets.access import host_and_port

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 6.0  # seconds: upper bound of the first pause; it doubles per attempt, up to 6
_MAX_CONFIG = 1 << 20  # maximum bytes of the JSON of a config
_LONGEST_ERROR = 1000  # maximum characters of a server's error message
_PROGRESS = {"step": int, "updates": int, "stop": bool}
_TRAINING = {"send": str, "total_timesteps": float, "parameters": str, "rest": str}
_RESPONSE_SECONDS = 600.0  # timeout in seconds; the server may run an evaluation before it responds


class ServerLost(ConnectionError):
    """Raised when all attempts to reach the server failed."""


class ParameterClient:
    """Calls the commands of a parameter server; every command can raise the errors of ``request``.

    Pushes are numbered: a push that is repeated because the connection broke before its response is not applied again.

    Args:
        address: ``host:port`` of the server.
        worker: name of the worker; a random suffix is added, so that a restarted worker counts as a new one.
        token: access token of the server; ``None`` if it requires none.
        attempts: maximum number of connection attempts per request, at least 1.
        tls: TLS context of encrypted connections; ``None`` for unencrypted ones.

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
        """Return the server's progress, statistics and settings by name, see ``ParameterCommands.n_step``."""
        return self._checked("n_step", self.request({"command": "n_step"})[0], _PROGRESS | _TRAINING)

    def checkpoint(self) -> dict[str, Any]:
        """Save a checkpoint on the server; ``saved`` in the response is the number of pushes in the checkpoint."""
        return self._checked("checkpoint", self.request({"command": "checkpoint"})[0], {"saved": int})

    def config(self) -> dict[str, Any]:
        """Return the config of the training run that the server provides; its content is not checked.

        Raises:
            CommandRefused: the server provides no config, or one that is not a JSON object or larger than 1 MiB.
        """
        body = self.request({"command": "config"}, most=_MAX_CONFIG)[1]
        try:
            config = json.loads(body)
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict):
            raise CommandRefused(f"The config of the server at {self.address} is not a JSON object: check the address.")
        return config

    def pull(self, rest: bool = False, size: int | None = None) -> tuple[dict[str, Any], bytes]:
        """Return the server's progress (``step``, ``updates``, ``stop``), and the serialized parameters.

        Args:
            rest: true to append the agent's other arrays, see ``ServedParameters.other_arrays``, to the parameters.
            size: expected number of bytes; ``None`` accepts any.

        Raises:
            CommandRefused: the response is invalid, or has the wrong size.
        """
        answer, body = self.request({"command": "pull", "rest": rest}, most=MAX_BODY if size is None else size)
        if size is not None and len(body) != size:
            raise self._refusal("pull", f"a body of {len(body):,} bytes", f"a body of {size:,} bytes")
        return self._checked("pull", answer, _PROGRESS), body

    def push(self, body: bytes, *, step: int, updates: int, steps: int, **statistics: Any) -> dict[str, Any]:
        """Send a gradient or a delta (parameter change); ``accepted`` in the response is false if the push was dropped.

        Args:
            body: serialized gradient or delta, followed by ``ServedParameters.other_arrays`` of the agent.
            step: ``step`` of the server in the last pull.
            updates: ``updates`` of the server in the last pull.
            steps: number of environment steps that the push covers.
            **statistics: ``metrics`` and ``episodes`` of the push, see ``PushRecord``.
        """
        self._sequence += 1
        numbers = {"sequence": self._sequence, "step": step, "updates": updates, "steps": steps}
        header = {"command": "push", "worker": self.worker, **numbers, **statistics}
        return self._checked("push", self.request(header, body)[0], _PROGRESS | {"accepted": bool})

    def _checked(self, command: str, answer: dict[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
        """Return the header; raise ``CommandRefused`` unless entries have the types ``kinds``, numbers in [0, 2^53]."""
        for name, kind in kinds.items():
            value = answer.get(name)
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits or (kind in (int, float) and (value is None or not 0 <= value <= 2**53)):
                expected = {int: "an integer from 0 to 2^53", float: "a number from 0 to 2^53"}.get(kind, kind.__name__)
                raise self._refusal(command, f"{name}={short_repr(value)}", expected)
        return answer

    def _refusal(self, command: str, received: str, expected: str) -> CommandRefused:
        return CommandRefused(
            f"The server at {self.address} answered {command} with {received}, but {expected} was expected: it is not "
            "a parameter server, or it runs another version of evorl."
        )

    def request(self, header: Mapping[str, Any], body: bytes = b"", most: int = 0) -> tuple[dict[str, Any], bytes]:
        """Send a command and return the header and body of the response; the body may have up to ``most`` bytes.

        Raises:
            CommandRefused: the server rejected the command (the message is its error), or the response is too large.
            ServerLost: the server cannot be reached.
        """
        message = frame(header, body)
        for attempt in range(self._attempts):
            try:
                answer, out = self._exchange(message, most)
            except (OSError, WireError) as error:
                self.close()
                if attempt + 1 == self._attempts:
                    raise ServerLost(
                        f"No parameter server answered at {self.address} in {self._attempts} attempts "
                        f"({error or type(error).__name__}): start the server, or check the address."
                    ) from error
                longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
                time.sleep(self._pauses.uniform(longest / 2, longest))
            else:
                if "error" in answer:
                    raise CommandRefused(" ".join(str(answer["error"]).split())[:_LONGEST_ERROR])
                if out is None:
                    self.close()
                    raise self._refusal(str(header["command"]), "a larger body", f"a body of at most {most:,} bytes")
                return answer, out
        raise ValueError(f"attempts must be at least 1, got {self._attempts}.")

    def close(self) -> None:
        """Close the connection; the next request reconnects."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _exchange(self, message: bytes, most: int) -> tuple[dict[str, Any], bytes | None]:
        """Send a request; return the response, with ``None`` in place of a body that is too large."""
        if self._socket is None:
            self._socket = self._connected()
            self._socket.sendall(frame({"command": "n_step", "token": self._token or ""}))
            greeting, body = self._answer(self._socket, 0)
            if "error" in greeting or body is None:
                self.close()
                return greeting, body
        self._socket.settimeout(_RESPONSE_SECONDS)
        self._socket.sendall(message)
        return self._answer(self._socket, most)

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
    def _answer(connection: socket.socket, most: int) -> tuple[dict[str, Any], bytes | None]:
        until = time.monotonic() + _RESPONSE_SECONDS
        size, body = lengths(_received(connection, LENGTHS.size, until))
        header = parsed_header(_received(connection, size, until))
        return header, _received(connection, body, until) if body <= most else None


def _received(connection: socket.socket, size: int, until: float) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        if (left := until - time.monotonic()) <= 0:  # the socket's own timeout restarts with every received byte
            raise TimeoutError("the response is incomplete")
        connection.settimeout(left)
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the server closed the connection")
        view = view[count:]
    return bytes(data)
