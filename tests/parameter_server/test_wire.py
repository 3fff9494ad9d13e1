"""The network interface executes only named commands, one at a time; no push is lost or applied twice
if workers die.
"""

from __future__ import annotations

import contextlib
import gc
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.ops.optimization import Optimizer
from evorl.parameter_server.client import ParameterClient
from evorl.parameter_server.commands import ParameterCommands
from evorl.parameter_server.frames import (
    LENGTHS,
    CommandRefused,
    frame,
    lengths,
    parsed_header,
)
from evorl.parameter_server.update_rules import ParameterServerSettings, create, push
from evorl.parameter_server.wire import Command
from evorl.sockets.access import host_and_port, tls_context
from evorl.sockets.socket_server import ConnectionLimits
from evorl.types import PyTreeDict
from tests.support.certificate import write_certificate
from tests.support.errors import missing_parts, raises_naming
from tests.support.servers import counting_commands, served

NUM_WORKERS, PUSHES_EACH = 20, 12


def _receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    header, body = lengths(exactly(LENGTHS.size))
    return parsed_header(exactly(header)), exactly(body)


@contextlib.contextmanager
def _connection(address: str) -> Any:
    with socket.create_connection(host_and_port(address, "address"), timeout=20) as connection:
        yield connection


def _ask(connection: socket.socket, header: Mapping[str, Any], body: bytes = b"") -> dict[str, Any]:
    connection.sendall(frame(header, body))
    return _receive(connection)[0]


def _one_hot(place: int) -> bytes:
    gradient = np.zeros(NUM_WORKERS * PUSHES_EACH, np.float32)
    gradient[place] = 1.0
    return gradient.tobytes()


def test_what_is_not_registered_cannot_be_called() -> None:
    """Names of attributes are rejected as commands."""
    commands = counting_commands(3)
    with served(commands.table()) as address, _connection(address) as connection:
        for name in ("state", "table", "__class__", "_push", "settings.optimizer.init", "", None, ["pull"], "Pull"):
            error = _ask(connection, {"command": name})["error"]
            assert "checkpoint, config, n_step, pull, push" in error
        assert _ask(connection, {"command": "n_step"})["pushes"] == 0, "the connection goes on"


def test_eight_pushers_are_a_sequence() -> None:
    """Concurrent pushes equal a sequence: the parameters follow from the accepted order, which matters for Adam."""
    settings = ParameterServerSettings(optimizer=Optimizer("adam", 0.1))
    start = PyTreeDict(w=np.ones(50, np.float32))
    taken: list[np.ndarray] = []

    commands = ParameterCommands(settings, create(settings, start))
    inside = threading.Lock()

    def noted(header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        assert inside.acquire(blocking=False), "two commands run at once"
        taken.append(np.frombuffer(body, np.float32))
        time.sleep(0.001)
        answer = commands.push(header, body)
        inside.release()
        return answer

    table = commands.table()
    with served(table | {"push": Command(noted, table["push"].max_body)}) as address:

        def worker(number: int) -> None:
            random_numbers = np.random.default_rng(number)
            with ParameterClient(address, f"w{number}") as client:
                for _ in range(6):
                    gradient = random_numbers.normal(size=50).astype(np.float32)
                    client.push(gradient.tobytes(), step=0, updates=0, steps=3)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(worker, range(8)))
    assert len(taken) == 48
    assert commands.step == 48 * 3
    state = create(settings, start)
    for gradient in taken:
        state, _ = push(settings, state, PyTreeDict(w=gradient), 3, 0)
    np.testing.assert_array_equal(np.asarray(state.params.w), commands.parameters()["w"])


class _Dies(Exception):
    """Simulates a killed worker."""


class _MortalClient(ParameterClient):
    """Client that loses its connection at random moments, also within frames; a doomed one does not reconnect."""

    def __init__(self, address: str, number: int, dies_at: int | None) -> None:
        super().__init__(address, f"w{number}", attempts=50)
        self._draws = random.Random(number)
        self._dies_at, self._calls = dies_at, 0

    def _exchange(self, message: bytes, most: int) -> tuple[dict[str, Any], bytes]:
        self._calls += 1
        dying = self._calls == self._dies_at
        if self._socket is None:
            super()._exchange(frame({"command": "n_step"}), most)
        assert self._socket is not None, "it has just connected"
        if dying or self._draws.random() < 0.2:
            cut = self._draws.choice([1, 5, 60, len(message) - 1, len(message)])
            self._socket.sendall(message[:cut])
            if cut == len(message) and self._draws.random() < 0.5:
                self._answer(self._socket, most)  # applied, but the worker never receives the response
            linger = struct.pack("ii", 1, 0)  # a reset, as from a killed process
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if dying:
                self.close()
                raise _Dies
            raise ConnectionError("cut")
        return super()._exchange(message, most)


def test_no_update_is_lost_or_applied_twice_when_workers_die() -> None:
    """Each push is applied exactly once, although workers die: it subtracts 1 at its own index."""
    commands = counting_commands(NUM_WORKERS * PUSHES_EACH)
    moments = random.Random(17)
    doomed = {number: moments.randint(2, PUSHES_EACH) for number in moments.sample(range(NUM_WORKERS), 3)}
    answered: set[int] = set()
    tried: set[int] = set()

    def worker(address: str, number: int) -> None:
        client = _MortalClient(address, number, doomed.get(number))
        with client, contextlib.suppress(_Dies):
            for i in range(PUSHES_EACH):
                place = number * PUSHES_EACH + i
                tried.add(place)
                client.push(_one_hot(place), step=0, updates=0, steps=1)
                answered.add(place)

    with served(commands.table()) as address, ThreadPoolExecutor(NUM_WORKERS) as pool:
        list(pool.map(lambda number: worker(address, number), range(NUM_WORKERS)))
    applied = -commands.parameters()["w"]
    assert set(np.unique(applied)) <= {0.0, 1.0}, "none was applied twice"
    places = set(np.flatnonzero(applied).tolist())
    assert answered <= places, "none that was answered is lost"
    assert places <= tried
    assert len(places - answered) <= 3, "of those who died, one each may have been on its way"
    assert commands.step == commands.pushes == len(places)
    assert len(answered) > 17 * PUSHES_EACH - 1


def test_eight_megabytes_cross() -> None:
    commands = counting_commands(2_000_000)
    body = np.arange(2_000_000, dtype=np.float32)
    with served(commands.table()) as address, ParameterClient(address) as client:
        assert client.push(body.tobytes(), step=0, updates=0, steps=1)["accepted"]
        _, pulled = client.pull()
    np.testing.assert_array_equal(np.frombuffer(pulled, np.float32), -body)


def test_the_token_comes_first() -> None:
    table = counting_commands(3).table()
    with served(table, token="sesame") as address:
        with ParameterClient(address, token="sesame") as client:
            assert client.pull()[0]["step"] == 0
        for wrong in ("Sesame", "", None, "sesam\u00e9"):
            with ParameterClient(address, token=wrong) as client, raises_naming(CommandRefused, "token"):
                client.pull()


@pytest.mark.parametrize(
    ("sent", "parts"),
    [
        (LENGTHS.pack(4, 0) + b"[12]", ("JSON object",)),
        (LENGTHS.pack(4, 0) + b"\x80\x04K\x01", ("JSON object",)),
        (LENGTHS.pack(18, (1 << 32) - 1) + b'{"command":"push"}', ("'push'", "12 bytes")),
        (LENGTHS.pack(18, 1) + b'{"command":"pull"}', ("'pull'", "0 bytes")),
    ],
    ids=["list", "pickle", "huge", "body"],
)
def test_what_is_no_frame_ends_its_connection_alone(sent: bytes, parts: tuple[str, ...]) -> None:
    table = counting_commands(3).table()
    with served(table) as address, ParameterClient(address) as honest:
        assert honest.n_step()["pushes"] == 0
        with _connection(address) as connection:
            connection.sendall(sent)
            assert not missing_parts(_receive(connection)[0]["error"], *parts)
            with contextlib.suppress(ConnectionResetError):
                assert not connection.recv(1)
        assert honest.push(bytes(12), step=0, updates=0, steps=1)["accepted"]


def test_random_bytes_do_no_harm() -> None:
    draws = random.Random(5)
    commands = counting_commands(3)
    good = frame({"command": "push", "worker": "x", "sequence": 1, "step": 0, "updates": 0, "steps": 1}, bytes(12))
    with served(commands.table()) as address, ParameterClient(address) as honest:
        for i in range(100):
            data = bytearray(good)
            for _ in range(draws.randint(1, 4)):
                data[draws.randrange(len(good) - 12)] = draws.randrange(256)
            with contextlib.suppress(OSError), _connection(address) as connection:
                connection.sendall(bytes(data[: draws.randint(1, len(data))]))
            if i % 10 == 0:
                honest.push(bytes(12), step=0, updates=0, steps=1)
        assert honest.n_step()["pushes"] >= 10


@pytest.mark.usefixtures("few_objects")
def test_who_was_just_let_in_is_hung_up_on_too() -> None:
    """Closing the server also closes connections that were accepted but have no task."""
    for _ in range(20):
        with served({}) as address, _connection(address):
            pass
    gc.collect()


def test_a_failure_of_the_server_is_its_own() -> None:
    """An internal error ends the server and is raised there; clients get a message without traceback."""

    def broken(header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        raise OSError("no space is left on its disk: /secret/path")

    with (
        raises_naming(OSError, "no space is left"),
        served({"n_step": Command(broken)}) as address,
        _connection(address) as connection,
    ):
        assert _ask(connection, {"command": "n_step"}) == {"error": "the server has failed and is shutting down."}


def test_large_bodies_cross_tls(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    theirs = ssl.create_default_context(cafile=str(cert))
    commands = counting_commands(100_000)
    with served(commands.table(), tls=tls_context(cert, key)) as address:
        with ParameterClient(address, tls=theirs) as client:
            assert client.push(bytes(400_000), step=0, updates=0, steps=1)["accepted"]
            assert len(client.pull()[1]) == 400_000
        with ParameterClient(address, attempts=1) as client, pytest.raises(ConnectionError):
            client.pull()


def test_requests_that_are_sent_at_once_are_answered_in_order() -> None:
    """Pipelined requests are answered in order, also incomplete ones and after a half-close."""
    messages = [frame({"command": "n_step"}), frame({"command": "checkpoint"}), frame({"command": "pull"})]
    with served(counting_commands(3).table()) as address, _connection(address) as connection:
        connection.sendall(b"".join(messages)[:-3])
        assert _receive(connection)[0]["pushes"] == 0
        assert "saves no checkpoints" in _receive(connection)[0]["error"]
        connection.sendall(messages[2][-3:])
        assert len(_receive(connection)[1]) == 12
        connection.sendall(messages[0])
        connection.shutdown(socket.SHUT_WR)
        assert _receive(connection)[0]["pushes"] == 0
        assert not connection.recv(1)


def test_a_long_command_is_no_silence() -> None:
    def slow(header: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        time.sleep(1.0)
        return {"done": True}, b""

    limits = ConnectionLimits(request_seconds=0.2, frame_seconds=0.2, idle_seconds=0.3)
    with served({"slow": Command(slow)}, limits=limits) as address, _connection(address) as connection:
        assert _ask(connection, {"command": "slow"}) == {"done": True}
