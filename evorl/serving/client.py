"""Client for simulators: ``AgentProxy`` requests actions from a server, ``TrainingBase`` plays episodes.

``evorl.serving.client_copy`` joins this module and ``evorl.serving.rlx`` into one file for simulators without this
package. Both modules therefore need only Python 3.8 and its standard library, and import nothing else from the package.
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
    """Raised for a missing or lost connection, a timeout, an invalid address or message, or an error response."""


class AgentProxy:
    """Client of an agent server. A request waits for its response, and raises ``AgentProxyException`` if it fails.

    Args:
        address: ``"host:port"`` or ``(host, port)``; anything else raises ``AgentProxyException``.
        token: access token of the server, sent with ``init``; None if the server requires none.
        ssl_context: TLS context, which also determines if the host name is checked; None for no encryption.
        timeout: seconds to wait for the connection or a response (policy updates delay responses); None for no limit.
        limits: size limits of requests and responses.
        seed: seed of the random pauses between connection attempts; None for an arbitrary one.
        sleep: function that sleeps for a number of seconds.
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
            if not self.address[0].encode("idna") or not 0 < self.address[1] < 65536:
                raise ValueError("no host, or not a port")
        except (AttributeError, TypeError, ValueError):  # for the encoding, a UnicodeError
            expected = "expected host:port, with a port from 1 to 65535."
            raise AgentProxyException(f"can't parse server address {address!r}: {expected}") from None
        self.metrics = AgentMetrics(self)
        self._token, self._ssl_context, self._timeout, self._limits = token, ssl_context, timeout, limits
        self._random, self._sleep = random.Random(seed), sleep
        self._socket: socket.socket | None = None
        self._reader = FrameReader(limits.max_frame)

    @property
    def is_connected(self) -> bool:
        """True from a successful ``connect`` until ``disconnect`` or a failed transfer of a request or response."""
        return self._socket is not None

    def connect(self, retry: int = 6) -> None:
        """Open a new connection in at most ``retry`` attempts, 0.5 to 6 s apart; else raise ``AgentProxyException``."""
        self.disconnect()
        fault: OSError | None = None
        for attempt in range(retry):
            if attempt:
                self._sleep(self._random.uniform(0.5, 6.0))
            try:
                self._socket, self._reader = self._open(), FrameReader(self._limits.max_frame)
                return
            except OSError as error:
                fault = error
        host, port = self.address
        raise AgentProxyException(f"no connection is available after {retry} attempts at {host}:{port}: {fault}")

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
        """Start a session and return "ready". With ``exploit``, actions are greedy and no data is used for learning.

        ``more`` contains additional entries of the request. Servers of this package read ``token``, check that
        ``obs_space`` and ``action_space`` equal the spaces of the server, and ignore ``name``.
        """
        if self._token is not None:
            more.setdefault("token", self._token)
        return self._ask({"command": "init", "exploit": bool(exploit), **more})

    def update(self, reward: Any, state: Any, terminal: bool = False, **more: Any) -> Any:
        """Return the action (a number, list, array, or a dict or list of these); None if ``terminal`` or ``truncated``.

        Args:
            reward: reward of the last action, a number; None at the beginning of an episode.
            state: number, nested list, array, ``Image`` or dict of these, else TypeError; None only if ``terminal``.
            terminal: true if the episode is over.
            more: additional entries of the request. Servers of this package read ``truncated``: true if the episode
                was ended by a time limit, not by the task; ``state`` is then required.
        """
        return self._ask({"command": "update", "reward": reward, "state": state, "terminal": bool(terminal), **more})

    def reset(self) -> Any:
        """Abort the current episode and return "done"; the next update starts a new episode."""
        return self._ask({"command": "reset"})

    def disconnect(self) -> None:
        """Close the connection if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send_metric(self, method: str, name: str, y: Any, x: Any = None) -> Any:
        """Send a metric and return "done"; ``method`` is "scalar" or "histogram", see ``AgentMetrics``."""
        data = [{"method": method, "name": name, "y": y, "x": x}]
        return self._ask({"command": "update_metrics", "data": data})

    def _ask(self, message: dict[str, Any]) -> Any:
        if self._socket is None:
            raise AgentProxyException("no connection is available: call connect() first.")
        payload = encode(message)
        answered = False
        try:
            self._socket.sendall(frame(payload, self._limits.max_frame))
            answer = decode(self._receive(self._socket), self._limits)
            answered = True
        except OSError as error:
            raise AgentProxyException(f"connection closed: {error}") from error
        except ProtocolError as error:
            own_words = isinstance(error, ConnectionClosed) or str(error).startswith("can't send")
            raise AgentProxyException(str(error) if own_words else f"wrong message format: {error}") from error
        finally:
            if not answered:  # otherwise the next request would receive the late response
                self.disconnect()
        return _meaning(answer)

    def _receive(self, connection: socket.socket) -> bytes:
        while True:
            data = connection.recv(2**16)
            if not data:
                raise self._reader.end()
            payloads = self._reader.feed(data)
            if len(payloads) > 1:
                raise ProtocolError("received several responses to one request")
            if payloads:
                return payloads[0]


def _meaning(answer: dict[str, Any]) -> Any:
    response = answer.get("response")
    if not isinstance(response, str):
        raise AgentProxyException(f"wrong message format: response must be a string, got {response!r:.80}")
    if response == "error":
        message = answer.get("message")
        raise AgentProxyException(message if isinstance(message, str) else "unknown error: the server sent no message")
    return answer.get("data", response)


class AgentMetrics:
    """Sends metrics: ``proxy.metrics.scalar("score", 1.0)``. ``x`` is a step; None means the server's current step."""

    def __init__(self, proxy: AgentProxy) -> None:
        self._proxy = proxy

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Send the value ``y`` as one point of the curve ``name``."""
        self._proxy.send_metric("scalar", name, y, x)

    def histogram(self, name: str, y: Any, x: float | None = None) -> None:
        """Send a list or array of numbers ``y``, which the server bins into a histogram."""
        self._proxy.send_metric("histogram", name, y, x)


class Options:
    """Settings in nested mappings, such as the content of a YAML file; None for no settings."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self._settings = settings or {}

    def get(self, path: str, default: Any = None) -> Any:
        """Return the setting at a path such as ``environment/max_episodes``, or the default if it is missing."""
        found: Any = self._settings
        for name in path.split("/"):
            if not isinstance(found, Mapping) or name not in found:
                return default
            found = found[name]
        return found


class TrainingBase:
    """Plays one episode after another: subclass it, implement ``episode`` and call ``run``.

    Args:
        agent: proxy, or address of the server.
        options: nested settings. This class reads ``exploit`` (default False), ``environment/max_episodes`` (1) and
            ``environment/infinite_run`` (False); a subclass can read others by ``self.options.get("...")``.
        more: additional entries of every ``init``, for instance ``obs_space`` and ``action_space``.
    """

    max_failures = 10  # maximum number of consecutive failures of one episode

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
        """Play episode ``number``, from 0; return the value for the metric ``episode_reward``, None to send none."""
        raise NotImplementedError(f"{type(self).__name__} must define the method episode(self, number)")

    def run(self) -> None:
        """Play all episodes; after an error of the connection or the server, reconnect and repeat the episode.

        Raises:
            AgentProxyException: the server cannot be reached or rejects the first ``init``, or an episode failed more
                than ``max_failures`` times in a row.
        """
        number = failures = 0
        try:
            self.agent.connect()
            self._init()
            while self.infinite_run or number < self.max_episodes:
                try:
                    if failures:
                        self._init()
                    reward = self.episode(number)
                    if reward is not None:
                        self.agent.metrics.scalar("episode_reward", reward)
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
