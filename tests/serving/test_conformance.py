"""The engine of the client checks: equal values, and clients that do not connect."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from evorl.serving.conformance import (
    Check,
    CheckFailedError,
    Conversation,
    NoConnectionError,
    is_same_value,
    run_checks,
    shown,
)
from evorl.serving.rlx import Image, encode, frame
from tests.support.errors import raises_naming

GRAY = Image("L", 2, 1, bytes([0, 51]))


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        (3, 3.0),
        (np.int64(3), 3),
        (0.5, 0.5),
        (np.array(2.5), 2.5),
        (np.float32([[1, 2]]), [[1.0, 2.0]]),
        (np.array([True, False]), [1, 0]),
        (np.zeros((0, 3)), []),
        ([1, [2]], [1, [2]]),
        ({"a": 1, "b": None}, {"b": None, "a": 1}),
        (GRAY, [[0, 51]]),
        (GRAY, np.float32([[0, 0.2]])),
        (GRAY, [[[0], [51]]]),
    ],
)
def test_values_that_are_the_same(sent: Any, echoed: Any) -> None:
    assert is_same_value(sent, echoed)


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        (3, 4),
        (3, "3"),
        (1, True),
        (True, 1),
        (None, False),
        ("", None),
        (2**63 - 1, 2.0**63),
        (np.int64(2**63 - 1), 2.0**63),
        (np.float32([1, 2]), [[1, 2]]),
        (np.float32([1, 2]), [2, 1]),
        (np.zeros((0, 3)), np.zeros((0, 2))),
        (np.zeros((0, 3)), [0.0]),
        (np.float32([1, 2]), [[1], [2, 3]]),
        ([1, 2], [1]),
        ([1, 2], {"0": 1, "1": 2}),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": 1, "b": 1}),
        (GRAY, [[0], [51]]),
        (GRAY, [[0, 52]]),
        (GRAY, None),
    ],
)
def test_values_that_differ(sent: Any, echoed: Any) -> None:
    assert not is_same_value(sent, echoed)


def run_one(play: Any, *pieces: bytes, end: bool = False) -> str | None:
    """Return the failure of a script against a client that sends these bytes and then waits, or ends."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        for piece in pieces:
            client.sendall(piece)
        if end:
            client.shutdown(socket.SHUT_WR)
        (result,) = run_checks([Check("one", play)], listener, 0.1)
    return result.failure


def test_a_message_that_differs_is_shown_with_what_was_expected() -> None:
    failure = run_one(lambda talk: talk.receive_command("init", exploit=True), frame(encode({"command": "reset"})))
    assert failure is not None
    assert "'exploit': True" in failure
    assert "received {'command': 'reset'}" in failure


@pytest.mark.parametrize(
    ("sent", "received"),
    [((), "nothing in 0.1 seconds"), ((b"GET / HTTP",), "not RLX"), ((b"4:\2\0\0\0,",), "version 2")],
)
def test_what_is_no_message(sent: tuple[bytes, ...], received: str) -> None:
    failure = run_one(lambda talk: talk.receive(), *sent)
    assert failure is not None
    assert received in failure


def test_a_long_value_is_cut() -> None:
    assert len(shown(list(range(10_000)))) < 200


@pytest.mark.parametrize("is_running", [True, False])
def test_a_client_that_does_not_come(is_running: bool) -> None:
    def refuse(talk: Conversation) -> None:
        raise CheckFailedError("a client", "none")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        results = run_checks([Check("one", refuse)], listener, 0.1 if is_running else 60.0, lambda: lambda: is_running)
        with raises_naming(NoConnectionError, "0.1 seconds" if is_running else "without connecting"):
            list(results)


RESET = frame(encode({"command": "reset"}))


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (RESET * 2, "{'command': 'reset'}"),
        (RESET + RESET[:-1], "an incomplete message"),
        (RESET + b"1", "an incomplete message"),
    ],
)
def test_bytes_after_the_last_message_are_not_the_end_of_the_connection(sent: bytes, received: str) -> None:
    def expect_end(talk: Conversation) -> None:
        talk.receive()
        talk.expect_end()

    def expect_silence(talk: Conversation) -> None:
        talk.receive()
        talk.expect_silence(0.01)

    failure = run_one(expect_end, sent, end=True)
    assert failure is not None
    assert f"received {received}" in failure
    assert run_one(expect_end, RESET, end=True) is None
    assert run_one(expect_silence, sent) is not None
    assert run_one(expect_silence, RESET) is None
