"""An agent server without an agent: ``python -m tests.support.fake_agent_server 7001 [seconds]``.

It tries each arm of a bandit, then answers by the one that has paid best. With a number of seconds it ends by itself.
"""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from evorl.serving.rlx import FrameReader, decode, encode, frame


class FakeAgentServer:
    """Listens on a port of this machine; ``messages`` holds what came.

    Args:
        port: 0 for a free one.
        action: answered always; ``None`` for that of the arm which paid best of ``arms``.
        arms: how many.
    """

    def __init__(self, port: int = 0, action: Any = None, arms: int = 4) -> None:
        self.messages: list[dict[str, Any]] = []
        self.action, self.arms, self.random = action, arms, random.Random(0)
        self.paid: dict[int, list[float]] = defaultdict(list)
        self.socket = socket.create_server(("127.0.0.1", port))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        reader, arm = FrameReader(), 0
        with connection:
            while data := connection.recv(2**16):
                for payload in reader.feed(data):
                    message = decode(payload)
                    self.messages.append(message)
                    answer: dict[str, Any] = {"response": "done"}
                    if message["command"] == "init":
                        answer = {"response": "ready"}
                    elif message["command"] == "update":
                        if message["reward"] is not None:
                            self.paid[arm].append(message["reward"])
                        arm = self._arm()
                        action = arm if self.action is None else self.action
                        answer = {"response": "action", "data": None if message["terminal"] else action}
                    connection.sendall(frame(encode(answer)))

    def _arm(self) -> int:
        untried = [arm for arm in range(self.arms) if len(self.paid[arm]) < 60]
        if untried:
            return untried[0]
        return max(range(self.arms), key=lambda arm: sum(self.paid[arm]) / len(self.paid[arm]))

    def commands(self) -> list[str]:
        """The commands that came, in order."""
        return [message["command"] for message in self.messages]

    def metrics(self, name: str) -> list[float]:
        """The values of a metric, in the order they came."""
        sent = [data for message in self.messages for data in message.get("data", [])]
        return [data["y"] for data in sent if data["name"] == name]

    def close(self) -> None:
        """Accept no more."""
        self.socket.close()


if __name__ == "__main__":
    server = FakeAgentServer(int(sys.argv[1]))
    print("the fake server is there", flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 600.0)
