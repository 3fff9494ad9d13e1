"""RLX servers with scripted responses, each connection in a thread.

``python -m tests.support.rlx_server 7001`` plays a bandit for ten minutes.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from evorl.serving.rlx import FrameReader, decode, encode, frame

Answer = dict[str, Any] | bytes | None  # a message, bytes to send unchanged, or None to close the connection


class RlxServer(socketserver.ThreadingTCPServer):
    """Answers every message by ``answer(message)``, and stores the messages; serves within its context.

    Args:
        answer: returns the response to a message.
        port: port of this machine; 0 for a free one.
        ssl_context: for TLS.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], Answer], port: int = 0, ssl_context: Any = None) -> None:
        super().__init__(("127.0.0.1", port), socketserver.BaseRequestHandler)
        self.messages: list[dict[str, Any]] = []
        self.num_connections = 0
        self.port: int = self.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        self._answer, self._ssl_context = answer, ssl_context
        self._connections: set[Any] = set()

    def __enter__(self) -> RlxServer:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # the client has disconnected
                connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; the server ignores one that raises ``OSError``."""
        connection, address = super().get_request()
        if self._ssl_context is not None:
            connection = self._ssl_context.wrap_socket(connection, server_side=True)
        self.num_connections += 1
        self._connections.add(connection)
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a client until it closes the connection or the response is ``None``."""
        reader = FrameReader()
        with contextlib.suppress(OSError):  # the client or this server closes
            while data := request.recv(2**16):
                for payload in reader.feed(data):
                    self.messages.append(message := decode(payload))
                    if (answer := self._answer(message)) is None:
                        return
                    request.sendall(answer if isinstance(answer, bytes) else frame(encode(answer)))

    def metrics(self, name: str) -> list[float]:
        """Return the values of a metric in the order of arrival."""
        sent = [data for message in self.messages for data in message.get("data", [])]
        return [data["y"] for data in sent if data["name"] == name]


class BanditServer(RlxServer):
    """Bandit player that tries each of four arms 60 times, then pulls the one with the best mean reward.

    Attributes:
        action: response instead of an arm; ``None`` for the arm.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(self._play, port)
        self.action: Any = None
        self._paid: list[list[float]] = [[], [], [], []]
        self._of_connection = threading.local()  # one thread per connection

    def _play(self, message: dict[str, Any]) -> Answer:
        if message["command"] == "update":
            if message["reward"] is not None:
                self._paid[self._of_connection.arm].append(message["reward"])
            self._of_connection.arm = self.choose()
        return agent_answers(lambda _: self._of_connection.arm if self.action is None else self.action)(message)

    def choose(self) -> int:
        """Return the next arm."""
        untried = [arm for arm, paid in enumerate(self._paid) if len(paid) < 60]
        return untried[0] if untried else max(range(4), key=lambda arm: statistics.fmean(self._paid[arm]))


def agent_answers(action: Callable[[Any], Any] = lambda state: 0) -> Callable[[dict[str, Any]], Answer]:
    """Return the responses of an agent server whose policy is ``action(state)``."""

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


if __name__ == "__main__":
    with BanditServer(int(sys.argv[1])):
        print("the bandit's player is there", flush=True)
        time.sleep(600.0)
