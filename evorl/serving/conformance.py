"""Checks of an RLX client: a server plays a scripted conversation for each check and verifies the client's messages.

The client under test is an echo program of about twenty lines that uses the client library; the page "Clients" of the
guide describes its rules. It sends every action back as the next state, which shows the server how the library decodes
and encodes each value. The actions ``terminal``, ``reset``, ``metric`` and ``end`` are commands to the program.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from evorl.serving.rlx import ConnectionClosed, FrameReader, Image, ProtocolError, decode, encode, frame

REWARD = 1.5  # reward of every step of the echo program
_MAX_SHOWN = 120  # maximum number of characters of a value in a report
_POLL_SECONDS = 0.05  # interval at which the client's process is polled
_FLOAT_TOLERANCE = 1e-6  # for images, whose bytes are divided by 255 in float32


class CheckFailedError(Exception):
    """Raised if the client does something other than the script expects.

    Args:
        expected: expected message or event, as a noun phrase.
        received: actual message or event, as a noun phrase.
    """

    def __init__(self, expected: str, received: str) -> None:
        super().__init__(f"expected {expected}, received {received}")
        self.expected, self.received = expected, received


class NoConnectionError(Exception):
    """Raised if the client does not connect: neither this check nor a later one can run."""


class Conversation:
    """A connection of the client under test, seen from the server; ``seconds`` is the timeout of a message."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._reader = FrameReader()
        self._pending: list[bytes] = []
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self, expected: str = "a message") -> dict[str, Any]:
        """Return the client's next message; ``expected`` describes it in the report, as a noun phrase.

        Raises:
            CheckFailedError: the client sends nothing in time, closes the connection, or sends bytes that are not RLX.
        """
        until = time.monotonic() + self._seconds
        try:
            while not self._pending:
                data = self._read(until)
                if data is None:
                    raise CheckFailedError(expected, f"nothing in {self._seconds:g} seconds")
                if not data:
                    raise self._reader.end()
                self._pending = self._reader.feed(data)
            return decode(self._pending.pop(0))
        except ConnectionClosed:
            raise CheckFailedError(expected, "the end of the connection") from None
        except ProtocolError as error:
            raise CheckFailedError(expected, f"bytes that are not RLX ({error})") from None

    def receive_command(self, command: str, **entries: Any) -> dict[str, Any]:
        """Return the client's next message after checking that it has this command and these entries.

        Raises:
            CheckFailedError: the command or an entry differs or is missing, or no valid message was received.
        """
        expected = {"command": command, **entries}
        message = self.receive(f"the message {shown(expected)}")
        if not all(key in message and is_same_value(value, message[key]) for key, value in expected.items()):
            raise CheckFailedError(f"a message with {shown(expected)}", shown(message))
        return message

    def begin(self) -> None:
        """Complete ``init`` and receive the first update."""
        self.receive_command("init")
        self.send({"response": "ready"})
        self.receive_command("update")

    def answer(self, data: Any) -> None:
        """Send ``data`` as an action."""
        self.send({"response": "action", "data": data})

    def send(self, message: dict[str, Any]) -> None:
        """Send a message in one piece."""
        self.send_bytes(frame(encode(message)))

    def send_bytes(self, *pieces: bytes, pause: float = 0.0) -> None:
        """Send pieces, with ``pause`` seconds after each; raise ``CheckFailedError`` on a closed connection."""
        try:
            for piece in pieces:
                self._connection.sendall(piece)
                if pause:
                    time.sleep(pause)
        except OSError:
            raise CheckFailedError("an open connection", "the end of the connection") from None

    def expect_silence(self, seconds: float) -> None:
        """Raise ``CheckFailedError`` if the client sends anything, or closes the connection, within ``seconds``."""
        if self._pending or self._reader.is_within_frame or self._read(time.monotonic() + seconds) is not None:
            raise CheckFailedError("nothing before the answer", "another message or the end of the connection")

    def expect_end(self) -> None:
        """Raise ``CheckFailedError`` unless the client closes the connection in time, without sending anything more."""
        data = frame(self._pending[0]) if self._pending else self._read(time.monotonic() + self._seconds)
        if data is None:
            raise CheckFailedError("the end of the connection", f"an open connection after {self._seconds:g} seconds")
        if data or self._reader.is_within_frame:
            raise CheckFailedError("the end of the connection", _shown_bytes(data) if data else "an incomplete message")

    def end_sending(self) -> None:
        """Shut down the sending direction of the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def finish(self) -> None:
        """Send the command ``end`` if the client is still connected, and close the connection."""
        with contextlib.suppress(CheckFailedError):
            self.answer("end")
        with contextlib.suppress(OSError):
            self._connection.close()

    def _read(self, until: float) -> bytes | None:
        """Return the next bytes; empty at the end of the connection, ``None`` after a timeout."""
        readable, _, _ = select.select([self._connection], [], [], max(0.0, until - time.monotonic()))
        if not readable:
            return None
        try:
            return self._connection.recv(2**16)
        except OSError:
            return b""


class Check(NamedTuple):
    """A scripted conversation.

    Attributes:
        name: unique name.
        play: script that runs the conversation; raises ``CheckFailedError`` if the client deviates from it.
    """

    name: str
    play: Callable[[Conversation], None]


class Result(NamedTuple):
    """The outcome of a check.

    Attributes:
        name: name of the check.
        failure: ``expected ..., received ...``; ``None`` if the check passed.
    """

    name: str
    failure: str | None


def run_checks(
    checks: Iterable[Check],
    listener: socket.socket,
    seconds: float,
    start: Callable[[], Callable[[], bool]] | None = None,
) -> Iterator[Result]:
    """Run the checks, each on a new connection, and yield their results.

    Args:
        checks: checks to run, in this order.
        listener: listening socket.
        seconds: timeout of a connection and of each message in seconds.
        start: ends the previous client, starts the client for one check, and returns a function that returns True while
            that client runs. ``None`` for a client that reconnects by itself; the first connection then has no timeout.

    Raises:
        NoConnectionError: the client does not connect.
    """
    limit = seconds if start else None
    for check in checks:
        if start:
            _refuse_waiting_connections(listener)
        conversation = Conversation(_accept(listener, limit, start() if start else None), seconds)
        limit = seconds
        try:
            check.play(conversation)
        except CheckFailedError as error:
            yield Result(check.name, str(error))
        else:
            yield Result(check.name, None)
        finally:
            conversation.finish()


def _accept(listener: socket.socket, seconds: float | None, runs: Callable[[], bool] | None) -> socket.socket:
    until = None if seconds is None else time.monotonic() + seconds
    ended = False
    while True:
        readable, _, _ = select.select([listener], [], [], _POLL_SECONDS)
        if readable:
            return listener.accept()[0]
        if ended:
            raise NoConnectionError("The client's program has ended without connecting.")
        if until is not None and time.monotonic() > until:
            raise NoConnectionError(f"No client connected within {seconds:g} seconds, the value of the option seconds.")
        ended = runs is not None and not runs()  # a connection made just before the end is still accepted


def _refuse_waiting_connections(listener: socket.socket) -> None:
    """Close connections of earlier clients that were not accepted yet."""
    while select.select([listener], [], [], 0)[0]:
        listener.accept()[0].close()


def is_same_value(sent: Any, echoed: Any) -> bool:
    """Return True if a client has decoded and encoded a value correctly.

    Numbers are compared as numbers and arrays as nested lists, because many languages have a single number type and no
    arrays; Booleans and strings must keep their types. An image may come back as numbers from 0 to 255, or from 0 to 1.
    """
    if isinstance(sent, Image):
        raw = np.frombuffer(sent.data, "uint8").reshape(sent.height, sent.width, -1)
        numbers = _numbers(echoed)
        if numbers is None or numbers.size != raw.size or numbers.shape[:2] != raw.shape[:2]:
            return False
        numbers = numbers.reshape(raw.shape)
        return any(bool(np.allclose(numbers, raw / scale, 0, _FLOAT_TOLERANCE)) for scale in (1, 255))
    if isinstance(sent, np.ndarray):
        numbers = _numbers(echoed)
        if numbers is None or (numbers.size == 0) != (sent.size == 0):
            return False
        # A nested list cannot represent the lengths of axes after an empty axis.
        is_empty_list = sent.size == 0 and not isinstance(echoed, np.ndarray)
        return is_empty_list or bool(np.array_equal(numbers, sent))
    if isinstance(sent, list):
        items = echoed.tolist() if isinstance(echoed, np.ndarray) else echoed
        return isinstance(items, list) and len(items) == len(sent) and all(map(is_same_value, sent, items))
    if isinstance(sent, dict):
        is_like = isinstance(echoed, dict) and sent.keys() == echoed.keys()
        return is_like and all(is_same_value(value, echoed[key]) for key, value in sent.items())
    if sent is None or isinstance(sent, (bool, str)):
        return type(sent) is type(echoed) and sent == echoed
    # Python compares an integer with a float exactly; NumPy rounds the integer first.
    number = sent.item() if isinstance(sent, np.generic) else sent
    return isinstance(echoed, (int, float)) and not isinstance(echoed, bool) and number == echoed


def _numbers(value: Any) -> np.ndarray | None:
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return numbers if numbers.dtype.kind in "biuf" else None


def shown(value: Any) -> str:
    """Return a value as text for a report, shortened if it is long."""
    is_array = isinstance(value, np.ndarray)
    text = f"{value.dtype}{list(value.shape)} {value.tolist()}" if is_array else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


def _shown_bytes(data: bytes) -> str:
    try:
        (payload,) = FrameReader().feed(data)
        return shown(decode(payload))
    except (ProtocolError, ValueError):
        return f"the bytes {shown(data)}"
