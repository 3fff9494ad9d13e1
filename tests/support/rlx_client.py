"""Clients of a server in this process: the protocol over a socket, and a script that plays."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from evorl.serving.client import FrameReader, decode, encode, frame
from tests.support.scripted_simulator import Script


class RlxClient:
    """A connection that handles one message at a time.

    Args:
        address: ``rlx://host:port``, or a pair.
        context: for TLS.
    """

    def __init__(self, address: Any, context: Any = None, seconds: float = 20.0) -> None:
        if isinstance(address, str):
            host, _, port = address.partition("://")[2].rpartition(":")
            address = (host, int(port))
        self.socket = socket.create_connection(address, seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=address[0])
        self._reader = FrameReader()
        self._answers: list[dict[str, Any]] = []

    def send(self, *messages: dict[str, Any]) -> None:
        """Send all messages in one write."""
        self.socket.sendall(b"".join(frame(encode(message)) for message in messages))

    def hear(self) -> dict[str, Any] | None:
        """Return the next response; ``None`` if the server closed the connection."""
        while not self._answers:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._answers = [decode(payload) for payload in self._reader.feed(data)]
        return self._answers.pop(0)

    def ask(self, command: str, **more: Any) -> Any:
        """Send a message and return the response."""
        self.send({"command": command, **more})
        return self.hear()

    def close(self) -> None:
        """Disconnect, also while another thread waits for a response."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class PlayingClient(threading.Thread):
    """Plays a ``Script`` until the server closes or ``most`` actions were received; records its steps.

    Attributes:
        script: the script.
        steps: per step the observation, action, reward, next observation, and end of the episode.
        returns: returns of its episodes.
    """

    def __init__(
        self,
        address: Any,
        seed: int,
        exploit: bool = False,
        most: int | None = None,
        lengths: Any = (4, 3, 6),
        kind: type[Script] = Script,
    ) -> None:
        super().__init__(daemon=True)
        self.script, self.exploit, self.most = kind(seed, lengths), exploit, most
        self.steps: list[tuple[np.ndarray, Any, float, np.ndarray, bool, bool]] = []
        self.returns: list[float] = []
        self.failure: Any = None
        self._client = RlxClient(address)
        self.start()

    def leave(self) -> None:
        """Disconnect immediately, and wait for the end of the thread."""
        self.most = 0
        self._client.close()
        self.join(10.0)

    def run(self) -> None:
        """Play until the end."""
        try:
            ready = self._client.ask("init", exploit=self.exploit)
            while ready is not None and self._episode():
                pass
        except Exception as error:
            if self.most != 0:
                self.failure = error
        finally:
            self._client.close()

    def _episode(self) -> bool:
        obs, total = self.script.start(), 0.0
        answer = self._client.ask("update", reward=None, state=obs, terminal=False)
        while answer is not None and (self.most is None or len(self.steps) < self.most):
            if answer["response"] != "action":
                raise ValueError(answer)
            action = answer["data"]
            before, (obs, reward, terminated, truncated) = obs, self.script.step(action)
            total += reward
            ends = {"terminal": terminated or truncated} | ({"truncated": True} if truncated else {})
            self.steps.append((before, action, reward, obs, terminated, truncated))
            answer = self._client.ask("update", reward=reward, state=obs, **ends)
            if answer is not None and (terminated or truncated):
                self.returns.append(total)
                return True
        return False


@contextlib.contextmanager
def playing(address: Any, *seeds: int, **settings: Any) -> Iterator[list[PlayingClient]]:
    """Run a client for each seed within the context."""
    clients = [PlayingClient(address, seed, **settings) for seed in seeds]
    try:
        yield clients
    finally:
        for client in clients:
            client.leave()
