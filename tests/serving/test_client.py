"""The client against a scripted server: messages, connections and episodes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evorl.serving.client import AgentProxy, AgentProxyException, Limits, Options, TrainingBase, encode, frame
from tests.support.apps import free_port
from tests.support.certificate import write_certificate
from tests.support.errors import assert_names, raises_naming
from tests.support.rlx_server import RlxServer, agent_answers

NO_CONNECTION = "no connection is available: call connect() first."


def error_of(call: Callable[[], Any]) -> str:
    """Return the message of the AgentProxyException that the call raises."""
    with pytest.raises(AgentProxyException) as error:
        call()
    return str(error.value)


def test_an_episode_and_what_the_server_hears_of_it() -> None:
    with RlxServer(agent_answers(lambda state: [float(sum(state))])) as server:
        proxy = AgentProxy(server.address)
        proxy.connect()
        assert proxy.init() == "ready"
        assert proxy.update(None, [0.5, 1.0]) == [1.5]
        assert proxy.update(1, np.float32([1, 2]), False) == [3.0]
        assert proxy.update(np.float32(2), None, True) is None
        assert proxy.reset() == "done"
        proxy.metrics.scalar("episode_reward", 3.0)
        proxy.metrics.histogram("actions", [1, 2], x=7)
        proxy.disconnect()
        proxy.disconnect()
    init, first, second, last, reset, scalar, histogram = server.messages
    assert init == {"command": "init", "exploit": False}
    assert first == {"command": "update", "reward": None, "state": [0.5, 1.0], "terminal": False}
    assert list(first) == ["command", "reward", "state", "terminal"]
    np.testing.assert_array_equal(second["state"], np.float32([1, 2]))
    assert (last["reward"], last["state"], last["terminal"]) == (2.0, None, True)
    assert reset == {"command": "reset"}
    assert scalar["data"] == [{"method": "scalar", "name": "episode_reward", "y": 3.0, "x": None}]
    assert histogram["data"] == [{"method": "histogram", "name": "actions", "y": [1, 2], "x": 7}]


def test_further_keys_are_sent_as_they_are_given() -> None:
    with RlxServer(agent_answers()) as server:
        proxy = AgentProxy(("127.0.0.1", server.port), token="secret")
        proxy.connect()
        proxy.init(exploit=True, obs_space={"shape": (2,)}, name="left arm")
        proxy.update(None, [], truncated=True)
        proxy.disconnect()
    init, update = server.messages
    expected = {"command": "init", "exploit": True, "token": "secret", "obs_space": {"shape": [2]}, "name": "left arm"}
    assert init == expected
    assert update["truncated"] is True


@pytest.mark.parametrize(("address", "parsed"), [("[::1]:7001", ("::1", 7001)), (("game", 80), ("game", 80))])
def test_addresses(address: Any, parsed: tuple[str, int]) -> None:
    assert AgentProxy(address).address == parsed


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "localhost:",
        ":x",
        7001,
        ("localhost",),
        None,
        ":7001",
        "localhost:0",
        "localhost:-1",
        "localhost:72537",
        ("localhost", 65536),
        "a..b:7001",
        f"{'a' * 64}:7001",
    ],
)
def test_an_address_that_is_none(address: Any) -> None:
    message = error_of(lambda: AgentProxy(address))
    assert_names(message, f"can't parse server address {address!r}", "expected host:port", "65535")


def test_without_a_connection() -> None:
    assert error_of(AgentProxy("localhost:1").reset) == NO_CONNECTION


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"response": "error", "message": "can't reset agent"}, "can't reset agent"),
        ({"response": "error"}, "unknown error"),
        ({"data": 3}, "wrong message format"),
        ({"response": 3}, "wrong message format"),
    ],
)
def test_answers_that_are_errors_leave_the_connection_open(answer: dict[str, Any], words: str) -> None:
    with RlxServer(lambda message: answer if message["command"] == "reset" else {"response": "ready"}) as server:
        proxy = AgentProxy(server.address)
        proxy.connect()
        assert error_of(proxy.reset).startswith(words)
        assert proxy.init() == "ready"
        proxy.disconnect()
    assert server.num_connections == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "connection closed"),
        (b"HTTP/1.1 400 Bad Request", "wrong message format"),
        (b"4:\2\0\0\0,", "wrong message format"),
        (frame(encode({"response": "done"})) * 2, "wrong message format"),
        (b"99999999:", "wrong message format"),
    ],
)
def test_answers_that_make_no_sense_end_the_connection(answer: bytes | None, words: str) -> None:
    with RlxServer(lambda message: answer) as server:
        proxy = AgentProxy(server.address)
        proxy.connect()
        assert error_of(proxy.reset).startswith(words)
        assert error_of(proxy.reset) == NO_CONNECTION


def test_an_answer_that_is_cut_and_one_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = AgentProxy(listener.getsockname(), timeout=0.1)
        proxy.connect()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"9:abc")
            connection.shutdown(socket.SHUT_WR)
            assert error_of(proxy.reset) == "connection closed within a message"
        proxy.connect()
        connection, _ = listener.accept()
        with connection:
            assert error_of(proxy.reset) == "connection closed: timed out"
            assert error_of(proxy.reset) == NO_CONNECTION


def test_what_cannot_be_sent_is_told_and_does_not_reach_the_server() -> None:
    with RlxServer(agent_answers()) as server:
        proxy = AgentProxy(server.address, limits=Limits(max_frame=1000))
        proxy.connect()
        with raises_naming(TypeError, "type for set"):
            proxy.update(None, {1})
        assert proxy.reset() == "done", "the connection is still good"
        assert_names(error_of(lambda: proxy.update(None, [0.0] * 1000)), "can't send", "at most 1000")
    assert [message["command"] for message in server.messages] == ["reset"]


def test_a_large_answer_comes_in_pieces() -> None:
    picture = np.arange(10**6, dtype=np.uint8)
    with RlxServer(agent_answers(lambda state: state)) as server:
        proxy = AgentProxy(server.address)
        proxy.connect()
        np.testing.assert_array_equal(proxy.update(None, picture), picture)
        proxy.disconnect()


def test_one_send_for_a_frame_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    sendall = socket.socket.sendall
    with RlxServer(agent_answers()) as server:
        proxy = AgentProxy(server.address)
        proxy.connect()
        assert proxy._socket is not None
        assert proxy._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client = proxy._socket

        def recorded(connection: socket.socket, data: bytes) -> None:
            sent.extend([data] if connection is client else [])
            sendall(connection, data)

        monkeypatch.setattr(socket.socket, "sendall", recorded)
        proxy.reset()
        proxy.disconnect()
    assert sent == [frame(encode({"command": "reset"}))]


def test_nobody_answers_at_a_free_port() -> None:
    pauses: list[float] = []
    proxy = AgentProxy(("127.0.0.1", free_port()), sleep=pauses.append, seed=0)
    assert error_of(lambda: proxy.connect(retry=2)).startswith(
        "no connection is available after 2 attempts at 127.0.0.1:"
    )
    assert len(pauses) == 1, "two tries have one pause between them"
    error_of(proxy.connect)
    assert len(pauses) == 1 + 5
    assert all(0.5 <= pause <= 6 for pause in pauses)
    assert len(set(pauses)) == 6


def test_a_server_that_comes_later_is_found() -> None:
    port, servers = free_port(), []

    def sleep(seconds: float) -> None:
        servers.append(RlxServer(agent_answers(), port).__enter__())

    proxy = AgentProxy(("127.0.0.1", port), sleep=sleep)
    proxy.connect(retry=2)
    assert proxy.init() == "ready"
    proxy.disconnect()
    servers[0].__exit__()


def test_tls(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    with RlxServer(agent_answers(), ssl_context=context) as server:
        proxy = AgentProxy(server.address, ssl_context=ssl.create_default_context(cafile=str(cert)))
        proxy.connect(retry=1)
        assert proxy.init() == "ready"
        proxy.disconnect()
        stranger = AgentProxy(server.address, ssl_context=ssl.create_default_context())
        assert "certificate verify failed" in error_of(lambda: stranger.connect(retry=1))


class Walk(TrainingBase):
    """Environment with two steps per episode; the reward is the episode's number."""

    def __init__(self, agent: AgentProxy | str, **options: Any) -> None:
        super().__init__(agent, {"environment": options, "exploit": True}, name="walk")
        self.numbers: list[int] = []

    def episode(self, number: int) -> float | None:
        self.numbers.append(number)
        self.agent.update(None, [0])
        self.agent.update(1.0, [1], terminal=True)
        return float(number)


def metrics(server: RlxServer) -> list[tuple[str, float]]:
    lists = [message["data"] for message in server.messages if message["command"] == "update_metrics"]
    return [(metric["name"], metric["y"]) for data in lists for metric in data]


def test_training_counts_episodes_and_sends_their_rewards() -> None:
    with RlxServer(agent_answers()) as server:
        training = Walk(server.address, max_episodes=3)
        training.run()
    assert training.numbers == [0, 1, 2]
    assert metrics(server) == [("episode_reward", 0.0), ("episode_reward", 1.0), ("episode_reward", 2.0)]
    assert server.messages[0] == {"command": "init", "exploit": True, "name": "walk"}
    assert error_of(training.agent.reset) == NO_CONNECTION, "run always disconnects"


def test_a_server_that_dies_in_an_episode_is_waited_for_and_the_number_played_again() -> None:
    second: list[RlxServer] = []
    with RlxServer(agent_answers()) as first:
        port = first.port
        proxy = AgentProxy(
            first.address, sleep=lambda seconds: second.append(RlxServer(agent_answers(), port).__enter__())
        )

        class Interrupted(Walk):
            def episode(self, number: int) -> float | None:
                if number == 1 and not second:
                    self.agent.update(None, [0])
                    first.__exit__()
                return super().episode(number)

        training = Interrupted(proxy, max_episodes=3)
        training.run()
    second[0].__exit__()
    assert training.numbers == [0, 1, 1, 2]
    assert metrics(first) == [("episode_reward", 0.0)]
    assert metrics(second[0]) == [("episode_reward", 1.0), ("episode_reward", 2.0)]
    assert second[0].messages[0]["command"] == "init"


def test_an_episode_that_always_fails_ends_the_run() -> None:
    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["command"] == "update":
            return {"response": "error", "message": "a state of shape (1,), expected (4,)"}
        return {"response": "ready"}

    with RlxServer(answer) as server:
        training = Walk(server.address, infinite_run=True)
        assert error_of(training.run) == "a state of shape (1,), expected (4,)"
    assert training.numbers == [0] * 11
    assert server.num_connections == 11


def test_a_refused_init_ends_the_run_at_once() -> None:
    with RlxServer(lambda message: {"response": "error", "message": "can't initialize agent"}) as server:
        assert error_of(Walk(server.address).run) == "can't initialize agent"
    assert server.num_connections == len(server.messages) == 1


def test_settings_by_their_paths() -> None:
    options = Options({"environment": {"max_episodes": 5, "crop": {"top": 1}}, "exploit": False})
    assert options.get("environment/max_episodes") == 5
    assert options.get("environment/crop/top", 3) == 1
    assert options.get("environment/max_episodes/x", 3) == 3
    assert options.get("size", "none") == "none"
    training = TrainingBase("localhost:7001")
    assert (training.exploit, training.max_episodes, training.infinite_run) == (False, 1, False)
    with raises_naming(NotImplementedError, "TrainingBase", "episode"):
        training.episode(0)
