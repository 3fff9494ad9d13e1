"""TCP clients that break the rules are disconnected with a reason, without effect on others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evorl.serving.client import encode, frame
from evorl.serving.connections import RlxServer
from evorl.serving.event_thread import EventThread
from evorl.serving.serve_settings import ServeSettings
from evorl.sockets.frame_server import HELLO_BYTES
from evorl.sockets.socket_server import WRITE_BUFFER_BYTES
from tests.serving.test_switchboard import SwitchboardSetup
from tests.support.certificate import write_certificate
from tests.support.rlx_client import RlxClient
from tests.support.waiting import wait_until

INIT = {"command": "init"}
UPDATE = {"command": "update", "state": [0.5], "reward": 1.0}
READY = {"response": "ready"}


class Listening:
    """A server, and ways to connect to it."""

    def __init__(self, max_clients: int = 100, **settings: Any) -> None:
        self.settings = ServeSettings(**{"bind": "127.0.0.1:0", "max_clients": max_clients, **settings})
        self.place = SwitchboardSetup(num_rows=10**6, max_clients=max_clients)
        self.switchboard = self.place.switchboard
        self.switchboard.token = self.settings.token
        self.thread = EventThread(self.settings, self.switchboard)
        self._clients: list[RlxClient] = []

    @property
    def address(self) -> str:
        return self.thread.addresses[0]

    def client(self, begun: bool = True, **more: Any) -> RlxClient:
        client = RlxClient(self.address, **more)
        self._clients.append(client)
        if begun:
            assert client.ask("init") == READY
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.thread.close()


@contextlib.contextmanager
def listening(**settings: Any) -> Iterator[Listening]:
    server = Listening(**settings)
    try:
        yield server
    finally:
        server.close()


def plays_on(client: RlxClient, count: int = 3) -> None:
    for _ in range(count):
        client.send(UPDATE)
        answer = client.hear()
        assert answer is not None
        assert answer["response"] == "action"


def refused(client: RlxClient, words: str) -> None:
    """Assert that the client receives an error and is disconnected."""
    answer = client.hear()
    assert answer is not None
    assert answer["response"] == "error"
    assert words in answer["message"]
    assert client.hear() is None


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening() as server:
        yield server


def test_a_client_plays(server: Listening) -> None:
    client = server.client()
    plays_on(client)
    assert client.ask("update", reward=1, state=None, terminal=True) == {"response": "action", "data": None}
    plays_on(client)
    assert server.address.startswith("rlx://127.0.0.1:")


def test_frames_come_in_pieces(server: Listening) -> None:
    client = server.client(begun=False)
    stream = b"".join(frame(encode(message)) for message in (INIT, UPDATE))
    for i in range(len(stream)):
        client.socket.sendall(stream[i : i + 1])
        if i % 10 == 0:
            time.sleep(0.001)
    assert client.hear() == READY
    assert (client.hear() or {})["response"] == "action"


def test_several_frames_come_at_once(server: Listening) -> None:
    """Frames in one read are handled in order: an episode's end, the next start, and a rejected extra update."""
    client = server.client(begun=False)
    client.send(INIT, UPDATE, UPDATE)
    assert client.hear() == READY
    answers = [client.hear() or {}, client.hear() or {}]
    assert sorted(answer["response"] for answer in answers) == ["action", "error"]
    assert "wait for the action" in str(answers)
    client.send({**UPDATE, "terminal": True}, UPDATE)
    assert client.hear() == {"response": "action", "data": None}
    assert isinstance((client.hear() or {})["data"], int)


def test_what_is_wrong_with_a_message_is_told_and_the_connection_stays(server: Listening) -> None:
    client = server.client()
    assert client.ask("fly")["response"] == "error"
    assert "shape [1], got [2]" in client.ask("update", state=[1.0, 2.0])["message"]
    client.send({"no": "command"})
    assert "command must be one of init" in (client.hear() or {})["message"]
    plays_on(client)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"4:abcd,", "version"),
        (b"x:", "wrong net string format"),
        (b"3:abcd", "wrong net string format"),
        (b"99999999999:", "wrong net string format"),
        (b"\x16\x03\x01\x02\x00", "wrong net string format"),  # TLS
        (b"GET / HTTP/1.1\r\n\r\n", "wrong net string format"),
        (b"8:\x01\x00\x00\x00\xff\xff\xff\xff,", "truncated"),
    ],
    ids=["version", "digits", "comma", "length", "tls", "http", "cut"],
)
def test_what_is_no_message_ends_the_connection(data: bytes, message: str, server: Listening) -> None:
    honest, other = server.client(), server.client(begun=False)
    other.socket.sendall(data)
    refused(other, message)
    plays_on(honest)


def test_nobody_may_send_much_before_init(server: Listening) -> None:
    other = server.client(begun=False)
    other.socket.sendall(b"%d:" % (HELLO_BYTES + 1))
    refused(other, "net string too long")
    # Frames after init may be larger, also in the same read.
    client = server.client(begun=False)
    client.send(INIT, {"command": "update_metrics", "name": "a" * 3 * HELLO_BYTES, "y": 1})
    assert client.hear() == READY
    assert client.hear() == {"response": "done"}
    client.send({"command": "update_metrics", "name": "," * 3 * HELLO_BYTES, "y": 1})
    assert client.hear() == {"response": "done"}


def test_frames_have_a_limit() -> None:
    with listening(max_frame=20_000) as server:
        client = server.client()
        client.socket.sendall(b"20001:")
        refused(client, "net string too long")


def test_who_says_nothing_or_dawdles_is_ended() -> None:
    with listening(hello_seconds=0.3) as server:
        honest, silent, slow = server.client(), server.client(begun=False), server.client(begun=False)
        started, data = time.monotonic(), frame(encode({**INIT, "name": "x" * 3000}))
        with contextlib.suppress(OSError):
            for i in range(200):  # one byte at a time, for 10 s
                slow.socket.sendall(data[i : i + 1])
                time.sleep(0.05)
        assert time.monotonic() - started < 5.0
        assert silent.hear() is None
        plays_on(honest)


def test_who_falls_silent_is_ended_where_that_is_asked_for() -> None:
    with listening(hello_seconds=0.2, idle_seconds=0.4) as server:
        silent, honest = server.client(), server.client()
        for _ in range(10):
            plays_on(honest, 1)
            time.sleep(0.08)
        assert silent.hear() is None
        plays_on(honest)


def test_a_client_that_waits_for_its_action_is_not_idle() -> None:
    with listening(hello_seconds=0.2, idle_seconds=0.4) as server:
        waiting = server.client()
        server.switchboard._is_held = True  # as during an update with max_policy_lag=0
        waiting.send(UPDATE)
        for _ in range(2):  # twice the time after which silence ends a connection
            assert server.client().hear() is None
        server.switchboard.note_new_policy()
        assert (waiting.hear() or {})["response"] == "action"
        time.sleep(0.2)  # half of idle_seconds, which count from the response
        plays_on(waiting)
        assert waiting.hear() is None  # idle again
        wait_until(lambda: not server.switchboard.num_clients)


def test_many_who_only_hold_the_line_disturb_nobody() -> None:
    with listening(max_clients=300) as server:
        idle = [server.client(begun=False) for _ in range(500)]
        started = time.monotonic()
        plays_on(server.client(), 50)
        assert time.monotonic() - started < 5.0
        assert len(idle) == 500


def test_clients_have_a_limit() -> None:
    with listening(max_clients=2) as server:
        first, _ = server.client(), server.client()
        third = server.client(begun=False)
        third.send(INIT)
        refused(third, "max_clients=2")
        plays_on(first)


def test_too_many_messages_in_a_second() -> None:
    with listening(max_messages_per_second=20) as server:
        client = server.client()
        with contextlib.suppress(OSError):
            client.send(*[{"command": "reset"}] * 100)
        answers: list[Any] = [client.hear()]
        while answers[-1] is not None:
            answers.append(client.hear())
        assert len(answers) <= 22
        assert "max_messages_per_second=20" in answers[-2]["message"]
        plays_on(server.client(), 10)


def test_who_does_not_read_is_dropped(server: Listening) -> None:
    honest, deaf = server.client(), server.client()
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.socket.settimeout(20.0)
    many = frame(encode({"command": "fly"})) * 20_000  # each gets an error response
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        for _ in range(100):
            deaf.socket.sendall(many)
    plays_on(honest)
    assert WRITE_BUFFER_BYTES <= 2**20


def test_who_vanishes_makes_room() -> None:
    with listening(max_clients=1) as server:
        for _ in range(3):
            client = server.client()
            plays_on(client, 1)
            client.send(UPDATE)
            client.close()
            wait_until(lambda: not server.switchboard.num_clients)


def test_encrypted_addresses_have_their_own_scheme(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with listening(cert=str(cert), key=str(key)) as server:
        assert server.address.startswith("rlxs://")
        plays_on(server.client(context=ssl.create_default_context(cafile=cert)))


def test_nothing_is_left_when_it_ends() -> None:
    before = threading.active_count()
    with listening() as server:
        client = server.client()
        address = client.socket.getpeername()
        server.thread.close()
        assert client.hear() is None
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 2.0)


def test_who_does_not_read_keeps_no_server_from_ending() -> None:
    async def run() -> bool:
        server = RlxServer(ServeSettings(bind="127.0.0.1:0"), SwitchboardSetup(num_rows=8).switchboard)
        await server.start()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(server.sockets.address)
            async with asyncio.timeout(20.0):
                while not server.sockets.connections:
                    await asyncio.sleep(0.01)
            (connection,) = server.sockets.connections
            while not connection.num_unread:
                connection._inner.reply({"response": "error", "message": "a" * 2**16})
            await asyncio.wait_for(server.stop(), 20.0)
            return bool(server.sockets.connections)

    assert not asyncio.run(run())
