"""Parameter servers of a stranger: after any answer a worker ends with one sentence, soon, in little memory."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from evorl.parameter_server import client as client_module
from evorl.parameter_server.client import ParameterClient, ServerLost
from evorl.parameter_server.commands import ParameterCommands
from evorl.parameter_server.frames import LENGTHS, CommandRefused, frame
from evorl.parameter_server.run import ParameterRun
from evorl.parameter_server.training import work
from evorl.parameter_server.worker import settings_for
from tests.strangers.conftest import Refused
from tests.support.errors import missing_parts, raises_naming
from tests.support.odd_values import ODD, label
from tests.support.servers import counting_commands
from tests.support.small_workflows import small

Respond = Callable[[socket.socket, Mapping[str, Any], bytes], None]
SECONDS = 0.5


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(client_module, "_RESPONSE_SECONDS", SECONDS)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


@contextlib.contextmanager
def hostile(respond: Respond) -> Iterator[str]:
    """The address of a server that reads whole requests and leaves the answers to ``respond``."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        is_over = threading.Event()

        def talk(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while not is_over.is_set():
                    size, body = LENGTHS.unpack(_read(connection, LENGTHS.size))
                    header = json.loads(_read(connection, size))
                    respond(connection, header, _read(connection, body))

        def accept() -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listening.accept()
                    connection.settimeout(60)  # a worker compiles its update between two requests
                    threading.Thread(target=talk, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            is_over.set()
            thread.join()


@contextlib.contextmanager
def client_of(respond: Respond, attempts: int = 1) -> Iterator[ParameterClient]:
    """A client of such a server."""
    with hostile(respond) as address, ParameterClient(address, attempts=attempts) as client:
        yield client


def nearly(commands: ParameterCommands, change: Callable[[str, dict[str, Any], bytes], tuple[Any, bytes]]) -> Respond:
    """Answers of a real server, each with a change."""
    table = commands.table()

    def respond(connection: socket.socket, header: Mapping[str, Any], body: bytes) -> None:
        name = header["command"]
        try:
            answer, out = change(name, *table[name].handler(header, body))
        except CommandRefused as error:
            answer, out = {"error": str(error)}, b""
        text = json.dumps(answer).encode()
        connection.sendall(LENGTHS.pack(len(text), len(out)) + text + out)

    return respond


NEEDED = {
    "n_step": ("step", "updates", "stop", "send", "total_timesteps", "parameters", "rest"),
    "pull": ("step", "updates", "stop"),
    "push": ("step", "updates", "stop", "accepted"),
    "checkpoint": ("saved",),
}
CALLS: Mapping[str, Callable[[ParameterClient], Any]] = {
    "n_step": lambda client: client.n_step(),
    "pull": lambda client: client.pull(),
    "push": lambda client: client.push(bytes(12), step=0, updates=0, steps=1),
    "checkpoint": lambda client: client.checkpoint(),
}


def _answer_or_error(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (CommandRefused, ServerLost) as error:
        return error


@pytest.mark.parametrize(("command", "key"), [(command, key) for command, keys in NEEDED.items() for key in keys])
def test_any_value_of_any_entry_of_an_answer(command: str, key: str) -> None:
    missing = object()
    for value in (missing, *(value for value in ODD if value != "\ud800")):

        def change(name: str, answer: dict[str, Any], out: bytes, value: Any = value) -> tuple[Any, bytes]:
            rest = {k: v for k, v in answer.items() if k != key or value is not missing}
            return (rest if value is missing else {**rest, key: value}) if name == command else answer, out

        with client_of(nearly(counting_commands(3, save=lambda: 1), change)) as client:
            answer = _answer_or_error(lambda client=client: CALLS[command](client))
        if isinstance(answer, Exception):
            is_json = isinstance(answer, ServerLost)  # NaN and infinity are not JSON
            assert is_json or not missing_parts(str(answer), client.address, f"{key}="), answer
            assert len(str(answer)) < 500
            continue
        answer = answer[0] if command == "pull" else answer
        received = answer[key]
        assert type(received) in (int, float, str, bool), value
        assert isinstance(received, str) or 0 <= received <= 2**53


@pytest.mark.parametrize("value", ODD, ids=label)
def test_an_error_is_one_line(value: Any) -> None:
    def respond(connection: socket.socket, header: Mapping[str, Any], body: bytes) -> None:
        text = json.dumps({"error": ["\x1b[2J\n" * 50, value]}).encode()
        connection.sendall(LENGTHS.pack(len(text), 0) + text)

    with client_of(respond) as client, pytest.raises((CommandRefused, ServerLost)) as raised:
        client.n_step()
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) <= 1200


def _slowly(connection: socket.socket, header: Mapping[str, Any], body: bytes) -> None:
    for byte in frame({"step": 0, "text": "x" * 1000}):
        connection.sendall(bytes((byte,)))
        time.sleep(0.02)


def _sending(data: bytes, closes: bool = True) -> Respond:
    def respond(connection: socket.socket, header: Mapping[str, Any], body: bytes) -> None:
        connection.sendall(data)
        if closes:
            connection.shutdown(socket.SHUT_RDWR)

    return respond


def _announcing(header: int, body: int) -> bytes:
    return LENGTHS.pack(header, body)


WHOLE = frame({"step": 0, "updates": 0, "stop": False})
RAW: Mapping[str, Respond] = {
    "never": lambda *_: time.sleep(2 * SECONDS),
    "in pieces without end": _slowly,
    "closed at once": _sending(b""),
    "half of the lengths": _sending(WHOLE[:3]),
    "half of the header": _sending(WHOLE[:20]),
    "half, and silence": _sending(WHOLE[:20], closes=False),
    "a huge header": _sending(_announcing(2**32 - 1, 0)),
    "no header": _sending(_announcing(0, 0)),
    "a huge body": _sending(_announcing(len(WHOLE) - 8, 2**32 - 1) + WHOLE[8:], closes=False),
    "no JSON": _sending(_announcing(4, 0) + b"\xff\xfe{}"),
    "a list": _sending(_announcing(2, 0) + b"[]"),
    "deep JSON": _sending(_announcing(10_000, 0) + b"[" * 10_000),
    "a number of digits": _sending(_announcing(10_007, 0) + b'{"a":' + b"9" * 10_000 + b" }"),
    "HTTP": _sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "no numbers": _sending(frame({})),
}


@pytest.mark.parametrize("name", RAW)
def test_any_bytes(name: str) -> None:
    began = time.monotonic()
    tracemalloc.start()
    try:
        with client_of(RAW[name], attempts=2) as client, pytest.raises((CommandRefused, ServerLost)):
            client.pull(size=12)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2**22
    assert time.monotonic() - began < 10 * SECONDS


@pytest.mark.parametrize("name", ["closed at once", "a huge body", "no JSON", "no numbers", "HTTP"])
def test_the_command_ends_with_one_sentence(name: str, refused: Refused) -> None:
    with hostile(RAW[name]) as address:
        assert address in refused("work", address)


CONFIGS = (
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"seed": 1}',
    b'{"workflow": 1, "env": 2}',
)


@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_a_config_that_is_none(config: bytes, refused: Refused) -> None:
    answer = frame({"step": 0, "updates": 0, "stop": False}, config)
    greeting = frame({"step": 0, "updates": 0, "stop": False})

    def respond(connection: socket.socket, header: Mapping[str, Any], body: bytes) -> None:
        connection.sendall(answer if header["command"] == "config" else greeting)

    with hostile(respond) as address:
        refused("work", address)


@pytest.mark.parametrize("damage", ["nothing", "a byte less", "a byte more", "other parameters", "nan"])
@pytest.mark.parametrize("command", ["pull"])
def test_a_worker_of_parameters_that_are_none(command: str, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_RESPONSE_SECONDS", 60)  # the server compiles when it applies a push
    workflow = small("a2c", total_timesteps=128, eval_interval=0)
    commands = ParameterRun(workflow, settings_for(workflow)).commands

    def change(name: str, answer: dict[str, Any], out: bytes) -> tuple[Any, bytes]:
        if damage == "other parameters":
            return {**answer, "parameters": "0123"} if name == "n_step" else answer, out
        if name != command:
            return answer, out
        numbers = np.full(len(out) // 4, math.nan, np.float32).tobytes()
        return answer, {"nothing": b"", "a byte less": out[1:], "a byte more": out + b"a", "nan": numbers}[damage]

    with (
        hostile(nearly(commands, change)) as address,
        raises_naming(CommandRefused, "nan" if damage == "nan" else address),
    ):
        work(workflow, address, attempts=1, max_pushes=3)
