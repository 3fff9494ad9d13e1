"""A simulator's end of the wire: ``AgentProxy`` asks a server for actions, ``TrainingBase`` plays episodes.

Where this package is not installed, the protocol and this module stand in one file, which ``evorl.serving.client_copy``
makes: so they need Python 3.8 and its standard library, and nothing else of the package than one another.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from evorl.serving.rlx import ConnectionClosed, FrameReader, Image, Limits, ProtocolError, decode, encode, frame

if TYPE_CHECKING:
    import ssl

__all__ = [
    "AgentMetrics",
    "AgentProxy",
    "AgentProxyException",
    "ConnectionClosed",
    "FrameReader",
    "Image",
    "Limits",
    "Options",
    "ProtocolError",
    "TrainingBase",
    "decode",
    "encode",
    "frame",
]


class AgentProxyException(Exception):
    """No connection, no sense in the answer, or the server's own words why it refuses."""


class AgentProxy:
    """A simulator's end of one connection to an agent server: one question, one answer, in turn.

    Args:
        address: ``"host:port"`` or ``(host, port)``.
        token: what the server knows its clients by; it goes with ``init``.
        ssl_context: for TLS; the host's name is checked as the context says.
        timeout: seconds that an answer may take, None for any time: a server may make its clients wait while it learns.
        limits: of what is sent and of what the server may answer.
        seed: of the pauses between two tries to connect.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        token: str | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float | None = 600.0,
        limits: Limits = Limits(),  # noqa: B008
        seed: int | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        try:
            host, port = address.rsplit(":", 1) if isinstance(address, str) else address
            self.address = (host.strip("[]"), int(port))
        except (AttributeError, TypeError, ValueError):
            raise AgentProxyException("can't parse server address.") from None
        self.metrics = AgentMetrics(self)
        self._token, self._ssl_context, self._timeout, self._limits = token, ssl_context, timeout, limits
        self._random, self._sleep = random.Random(seed), sleep
        self._socket: socket.socket | None = None
        self._reader = FrameReader(limits.max_frame)

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open: ``connect`` has succeeded, and no fault has closed it since."""
        return self._socket is not None

    def connect(self, retry: int = 6) -> None:
        """Open the connection in at most ``retry`` tries, with pauses of 0.5 to 6 seconds between them.

        Raises:
            AgentProxyException: when none of them was answered.
        """
        self.disconnect()
        fault: OSError | None = None
        for attempt in range(retry):
            if attempt:
                self._sleep(self._random.uniform(0.5, 6.0))
            try:
                self._socket = self._open()
            except OSError as error:
                fault = error
            else:
                self._reader = FrameReader(self._limits.max_frame)
                return
        host, port = self.address
        raise AgentProxyException(f"no connection is available. {retry} tries at {host}:{port}: {fault}")

    def _open(self) -> socket.socket:
        connection = socket.create_connection(self.address, self._timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ssl_context:
                return self._ssl_context.wrap_socket(connection, server_hostname=self.address[0])
        except OSError:
            connection.close()
            raise
        return connection

    def init(self, exploit: bool = False, **more: Any) -> Any:
        """Begin: actions are the best known ones, and nothing is learned from them, where ``exploit`` is true.

        ``more`` goes along: servers of this package read ``token``, ``obs_space``, ``action_space`` and ``name``.
        """
        if self._token is not None:
            more.setdefault("token", self._token)
        return self._ask({"command": "init", "exploit": bool(exploit), **more})

    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        """The action for a state, or None where ``terminal`` says that the state was the last of its episode.

        Args:
            reward: for the last action; None at the beginning of an episode.
            state: numbers in lists, a NumPy array or an ``Image``; None is possible where ``terminal`` is true.
            terminal: whether the episode is over.
            more: goes along. Servers of this package read ``truncated``: over by a limit of time, not by its own end.
        """
        return self._ask({"command": "update", "reward": reward, "state": state, "terminal": bool(terminal), **more})

    def reset(self) -> Any:
        """Let the agent forget the episode so far; the next update begins another one."""
        return self._ask({"command": "reset"})

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send_metric(self, method: str, name: str, y: Any, x: Any = None) -> Any:
        """What ``metrics.scalar`` and ``metrics.histogram`` send."""
        data = [{"method": method, "name": name, "y": y, "x": x}]
        return self._ask({"command": "update_metrics", "data": data})

    def _ask(self, message: dict[str, Any]) -> Any:
        if self._socket is None:
            raise AgentProxyException("no connection is available.")
        payload = encode(message)
        answered = False
        try:
            self._socket.sendall(frame(payload, self._limits.max_frame))
            answer = decode(self._receive(self._socket), self._limits)
            answered = True
        except OSError as error:
            raise AgentProxyException("connection closed") from error
        except ProtocolError as error:
            own_words = isinstance(error, ConnectionClosed) or str(error).startswith("can't send")
            raise AgentProxyException(str(error) if own_words else "wrong message format") from error
        finally:
            if not answered:  # an answer that comes later would be taken for that to the next question
                self.disconnect()
        return _meaning(answer)

    def _receive(self, connection: socket.socket) -> bytes:
        while True:
            data = connection.recv(2**16)
            if not data:
                raise self._reader.end()
            payloads = self._reader.feed(data)
            if len(payloads) > 1:
                raise ProtocolError("several answers to one question")
            if payloads:
                return payloads[0]


def _meaning(answer: dict[str, Any]) -> Any:
    response = answer.get("response")
    if not isinstance(response, str):
        raise AgentProxyException("wrong message format")
    if response == "error":
        message = answer.get("message")
        raise AgentProxyException(message if isinstance(message, str) else "unknown error")
    return answer.get("data", response)


class AgentMetrics:
    """Numbers that a simulator tells its server: ``proxy.metrics``. Without ``x``, the server takes its own step."""

    def __init__(self, proxy: AgentProxy) -> None:
        self._proxy = proxy

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """One number of the curve ``name``."""
        self._proxy.send_metric("scalar", name, y, x)

    def histogram(self, name: str, y: Any, x: float | None = None) -> None:
        """Many numbers, a list or an array, whose distribution is of interest."""
        self._proxy.send_metric("histogram", name, y, x)


class Options:
    """Settings in mappings in one another, as a YAML file has them."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self._settings = settings or {}

    def get(self, path: str, default: Any = None) -> Any:
        """The setting of a path such as ``environment/max_episodes``, or the default where there is none."""
        found: Any = self._settings
        for name in path.split("/"):
            if not isinstance(found, Mapping) or name not in found:
                return default
            found = found[name]
        return found


class TrainingBase:
    """Plays episode after episode: subclass it, write ``episode``, and call ``run``.

    Args:
        agent: the proxy, or the address of the server.
        options: settings. ``exploit`` (default false), ``environment/max_episodes`` (1) and
            ``environment/infinite_run`` (false) are read here; others are for your own ``self.options.get("...")``.
        more: goes with every ``init``, for instance ``obs_space`` and ``action_space``.
    """

    max_failures = 10  # of one episode, one after another

    def __init__(
        self, agent: AgentProxy | str | tuple[str, int], options: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        self.agent = agent if isinstance(agent, AgentProxy) else AgentProxy(agent)
        self.options = Options(options)
        self.exploit = bool(self.options.get("exploit", False))
        self.max_episodes = int(self.options.get("environment/max_episodes", 1))
        self.infinite_run = bool(self.options.get("environment/infinite_run", False))
        self._more = more

    def episode(self, number: int) -> float | None:
        """Play the episode of this number, from 0; what it returns is sent as the metric ``episode_reward``."""
        raise NotImplementedError(f"{type(self).__name__} has to have a method episode(self, number)")

    def run(self) -> None:
        """Play all episodes; one in which the connection or the server failed is played again by a new connection.

        Raises:
            AgentProxyException: for a server that cannot be reached or refuses ``init`` at once, and for an episode
                that failed more than ``max_failures`` times.
        """
        number = failures = 0
        try:
            self.agent.connect()
            self._init()
            while self.infinite_run or number < self.max_episodes:
                try:
                    if failures:
                        self._init()
                    self._play(number)
                except AgentProxyException:
                    failures += 1
                    if failures > self.max_failures:
                        raise
                    self.agent.connect(retry=10)
                else:
                    number, failures = number + 1, 0
        finally:
            self.agent.disconnect()

    def _init(self) -> None:
        self.agent.init(exploit=self.exploit, **self._more)

    def _play(self, number: int) -> None:
        reward = self.episode(number)
        if reward is not None:
            self.agent.metrics.scalar("episode_reward", reward)
