"""A scripted RLX server: in a thread, one connection after another, on a free port."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from evorl.serving.rlx import FrameReader, decode, encode, frame

Answer = dict[str, Any] | bytes | None  # a message, bytes to send as they are, or None to hang up


class RlxServer:
    """Answers every message by ``answer(message)``, and keeps the messages; a context that ends with the thread."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer], port: int = 0, ssl_context: Any = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.num_connections = 0
        self._answer, self._ssl_context = answer, ssl_context
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.05)  # it looks so often whether it is to end
        self._connection: socket.socket | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> RlxServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError, AttributeError):  # nobody is there
            self._connection.shutdown(socket.SHUT_RDWR)  # pyright: ignore[reportOptionalMemberAccess]
        self._thread.join(20)
        self._listener.close()
        assert not self._thread.is_alive(), "the thread of the scripted server does not end"

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
                if self._ssl_context is not None:
                    connection = self._ssl_context.wrap_socket(connection, server_side=True)
            except OSError:
                continue
            with connection:
                self._connection = connection
                self.num_connections += 1
                connection.settimeout(20)
                with contextlib.suppress(OSError):  # the client has gone, or this server goes
                    self._talk(connection)
                self._connection = None

    def _talk(self, connection: socket.socket) -> None:
        reader = FrameReader()
        while data := connection.recv(2**16):
            for payload in reader.feed(data):
                self.messages.append(decode(payload))
                answer = self._answer(self.messages[-1])
                if answer is None:
                    return
                connection.sendall(answer if isinstance(answer, bytes) else frame(encode(answer)))


def agent_answers(action: Callable[[Any], Any] = lambda state: 0) -> Callable[[dict[str, Any]], Answer]:
    """What an agent server says whose policy is ``action(state)``."""

    def answer(message: dict[str, Any]) -> Answer:
        command = message.get("command")
        if command == "init":
            return {"response": "ready"}
        if command == "update":
            return {"response": "action", "data": None if message["terminal"] else action(message["state"])}
        if command in ("reset", "update_metrics"):
            return {"response": "done"}
        return {"response": "error", "message": "unknown command"}

    return answer


def closed_port() -> int:
    """A port that nobody listens at: it was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
