"""A client reconnects after losing its connection, and reports if it cannot."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evorl.parameter_server import client as client_module
from evorl.parameter_server.client import ParameterClient, ServerLost
from evorl.parameter_server.frames import CommandRefused
from tests.support.errors import raises_naming
from tests.support.servers import counting_commands, served

BODY = np.ones(3, np.float32).tobytes()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE", 0.01)


def _push(client: ParameterClient) -> dict:
    return client.push(BODY, step=0, updates=0, steps=1)


def test_it_pulls_and_pushes() -> None:
    commands = counting_commands(3)
    with served(commands.table()) as address, ParameterClient(address) as client:
        assert client.n_step()["pushes"] == 0
        assert _push(client)["accepted"]
        header, body = client.pull()
        assert (header["step"], np.frombuffer(body, np.float32).tolist()) == (1, [-1.0] * 3)


def test_it_repeats_what_was_not_answered() -> None:
    """Pushes whose connection ended before the response are repeated, and applied once."""
    commands = counting_commands(3)
    with served(commands.table()) as address, ParameterClient(address, "a") as client:
        exchange: Callable = client._exchange

        def broken(*request: Any) -> tuple[dict, bytes | None]:
            answer = exchange(*request)
            if len(lost) % 2:
                lost.append(True)
                return answer
            lost.append(True)
            raise ConnectionError("cut")

        lost: list[bool] = []
        client._exchange = broken
        answers = [_push(client) for _ in range(4)]
        assert [x["repeated"] for x in answers] == [True] * 4
        assert (commands.pushes, commands.step) == (4, 4)


def test_two_clients_of_one_name_are_two_workers() -> None:
    commands = counting_commands(3)
    with (
        served(commands.table()) as address,
        ParameterClient(address, "a") as one,
        ParameterClient(address, "a") as two,
    ):
        assert not _push(one)["repeated"]
        assert not _push(two)["repeated"]
        assert commands.pushes == 2


def test_nobody_at_home() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"  # bound, but not listening
        with ParameterClient(address, attempts=3) as client, raises_naming(ServerLost, "3 attempts"):
            client.n_step()


def test_a_server_that_talks_otherwise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        client = ParameterClient(f"127.0.0.1:{listening.getsockname()[1]}", attempts=2)
        with client, pytest.raises(ServerLost, match=r"header of a frame|reset"):
            client.n_step()
        thread.join()


def test_an_error_of_the_server_is_raised_in_its_words() -> None:
    with served(counting_commands(3).table()) as address, ParameterClient(address) as client:
        with raises_naming(CommandRefused, "checkpoints"):
            client.checkpoint()
        assert _push(client)["accepted"], "the connection goes on"
