"""Clients over WebSocket, in text and binary frames, and the health and metrics endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evorl.serving.packed_messages import pack_message, unpack_message
from evorl.serving.web import MAX_AGENTS, UNKNOWN_BYTES
from tests.serving.test_connections import Listening, listening
from tests.serving.test_session import TOKEN
from tests.support.errors import missing_parts

aiohttp = pytest.importorskip("aiohttp", reason="clients over WebSocket need the extra serve")
UPDATE = {"command": "update", "state": [0.5], "reward": 1.0}
INIT = {"command": "init"}


def url(server: Listening, path: str = "/ws", scheme: str = "http") -> str:
    return scheme + "://" + server.thread.addresses[1].partition("://")[2] + path


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening(web="127.0.0.1:0", max_clients=300) as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Listening]:
    with listening(web="127.0.0.1:0", token=TOKEN) as server:
        yield server


def talk(server: Listening, conversation: Callable[[Any], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """Return the result of a conversation over one WebSocket."""

    async def run() -> Any:
        async with aiohttp.ClientSession() as session, session.ws_connect(url(server), **settings) as socket:
            return await asyncio.wait_for(conversation(socket), 20.0)

    return asyncio.run(run())


def fetch(server: Listening, path: str, **headers: str) -> SimpleNamespace:
    async def run() -> SimpleNamespace:
        async with aiohttp.ClientSession() as session, session.get(url(server, path), headers=headers) as answer:
            return SimpleNamespace(status=answer.status, text=await answer.text(), headers=answer.headers)

    return asyncio.run(run())


async def closed_with_words(socket: Any) -> str:
    """Return the last message of the server before it closes."""
    words = json.loads((await socket.receive()).data)["message"]
    assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    return words


def test_agents_of_one_page_are_told_apart(server: Listening) -> None:
    async def conversation(socket: Any) -> None:
        answers: dict[Any, list[Any]] = {}

        async def hear(count: int) -> None:
            for _ in range(count):
                message = await socket.receive_json()
                answers.setdefault(message.pop("sid"), []).append(message)

        for sid in ("red", 7):
            await socket.send_json({"sid": sid, **INIT})
        await hear(2)
        for sid in (7, "red"):
            await socket.send_json({"sid": sid, **UPDATE})
        await hear(2)
        assert [answer["response"] for answer in answers["red"]] == ["ready", "action"]
        assert [answer["response"] for answer in answers[7]] == ["ready", "action"]
        assert answers["red"][1]["data"] != answers[7][1]["data"]  # the actions are session numbers
        await socket.send_json({"sid": 7, "command": "disconnect"})
        await hear(1)
        await socket.send_json({"sid": 7, **UPDATE})
        await hear(1)
        assert answers[7][2] == {"response": "done"}
        assert "before init" in answers[7][3]["message"]
        await socket.send_json({"sid": "red", **UPDATE})
        await hear(1)
        assert answers["red"][2]["response"] == "action"

    talk(server, conversation)


def test_without_a_sid_there_is_one_agent(server: Listening) -> None:
    async def conversation(socket: Any) -> list[Any]:
        answers = []
        for message in (INIT, UPDATE, {"command": "update", "reward": 1, "terminal": True, "state": None}):
            await socket.send_json(message)
            answers.append(await socket.receive_json())
        return answers

    ready, action, over = talk(server, conversation)
    assert ready == {"response": "ready"}
    assert isinstance(action["data"], int)
    assert over == {"response": "action", "data": None}


def test_bytes_are_message_pack_with_arrays(server: Listening) -> None:
    async def conversation(socket: Any) -> list[Any]:
        answers = []
        for message in (INIT, {**UPDATE, "state": np.array([0.5], np.float64)}, {**UPDATE, "reward": np.float32(2)}):
            await socket.send_bytes(pack_message(message))
            answers.append(unpack_message((await socket.receive()).data))
        return answers

    ready, first, second = talk(server, conversation)
    assert ready == {"response": "ready"}
    assert first["response"] == second["response"] == "action"


def test_many_agents_speak_in_lists(server: Listening) -> None:
    sids = list(range(MAX_AGENTS))

    async def conversation(socket: Any) -> None:
        async def ask(message: Any) -> dict[int, Any]:
            await socket.send_bytes(pack_message([{"sid": sid, **message} for sid in sids]))
            got: dict[int, Any] = {}
            while len(got) < len(sids):
                several = unpack_message((await socket.receive()).data)
                assert isinstance(several, list)
                got |= {answer["sid"]: answer for answer in several}
            return got

        assert {answer["response"] for answer in (await ask(INIT)).values()} == {"ready"}
        calls = len(server.place.inference.calls)
        actions = await ask(UPDATE)
        assert len({answer["data"] for answer in actions.values()}) == len(sids)
        assert len(server.place.inference.calls) == calls + 1  # in one batch
        await socket.send_bytes(pack_message([{"sid": MAX_AGENTS, **INIT}]))
        words = unpack_message((await socket.receive()).data)
        assert f"{MAX_AGENTS} agents" in str(words)

    talk(server, conversation)


def test_text_may_be_a_list_too(server: Listening) -> None:
    async def conversation(socket: Any) -> Any:
        await socket.send_json([{"sid": 1, **INIT}, {"sid": 2, **INIT}])
        return await socket.receive_json()

    assert talk(server, conversation) == [{"sid": sid, "response": "ready"} for sid in (1, 2)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{", ("JSON",)),
        ("3", ("message", "mapping", "got int")),
        ('["a"]', ("message", "mapping", "got str")),
        ('{"command": "init", "sid": [1]}', ("sid must",)),
        ('{"command": "init", "sid": "\\ud800"}', ("surrogate",)),
        ('{"command": "update", "reward": NaN}', ("NaN", "JSON")),
        ("[" * 50_000, ("JSON",)),
    ],
    ids=["half", "number", "list", "sid", "surrogate", "nan", "deep"],
)
def test_what_is_no_message_ends_the_connection(text: str, parts: tuple[str, ...], server: Listening) -> None:
    async def conversation(socket: Any) -> str:
        await socket.send_str(text)
        return str(await closed_with_words(socket)) if not text.startswith('["') else str(await socket.receive())

    assert not missing_parts(talk(server, conversation), *parts)


def test_an_unknown_command_does_not(server: Listening) -> None:
    async def conversation(socket: Any) -> list[str]:
        await socket.send_json({"command": "fly"})
        await socket.send_json({"command": "update", "reward": 10**40})
        await socket.send_json(INIT)
        return [(await socket.receive_json())["response"] for _ in range(3)]

    assert talk(server, conversation) == ["error", "error", "ready"]


def test_who_goes_makes_room() -> None:
    with listening(web="127.0.0.1:0", max_clients=2) as server:
        for _ in range(3):

            async def conversation(socket: Any) -> list[Any]:
                await socket.send_json([{"sid": sid, **INIT} for sid in (1, 2)])
                await socket.receive()
                await socket.send_json({"sid": 1, **UPDATE})
                return []

            talk(server, conversation)
            for _ in range(100):
                if not server.switchboard.num_clients:
                    break
                asyncio.run(asyncio.sleep(0.01))
            assert server.switchboard.num_clients == 0


def test_too_many_messages_and_too_much_silence() -> None:
    async def floods(socket: Any) -> str:
        await socket.send_json([{"command": "reset"}] * 30)
        return str((await socket.receive()).data)

    async def waits(socket: Any) -> Any:
        return (await socket.receive()).data

    with listening(web="127.0.0.1:0", max_messages_per_second=20, hello_seconds=0.2) as server:
        assert "max_messages_per_second=20" in talk(server, floods)
        assert talk(server, waits) == 1008


def test_an_agent_that_waits_for_its_action_is_not_idle() -> None:
    async def waits(socket: Any) -> list[Any]:
        answers = []
        for message in (INIT, UPDATE):
            await socket.send_json(message)
        answers.append(await socket.receive_json())
        await asyncio.sleep(0.8)  # twice idle_seconds
        server.switchboard.note_new_policy()
        answers.append(await socket.receive_json())
        await asyncio.sleep(0.2)  # half of idle_seconds, which count from the response
        await socket.send_json({"command": "update", "reward": 1, "terminal": True})
        return [*(each["response"] for each in answers), (await socket.receive_json())["data"], await socket.receive()]

    with listening(web="127.0.0.1:0", hello_seconds=0.2, idle_seconds=0.4) as server:
        server.switchboard._is_held = True  # as during an update with max_policy_lag=0
        ready, action, over, closing = talk(server, waits)
        assert (ready, action, over, closing.data) == ("ready", "action", None, 1008)


class TestToken:
    @pytest.mark.parametrize("way", ["message", "header", "query"])
    def test_ways_to_show_it(self, way: str, guarded: Listening) -> None:
        async def conversation(socket: Any) -> Any:
            await socket.send_json({**INIT, "token": TOKEN} if way == "message" else INIT)
            return await socket.receive_json()

        settings: dict[str, Any] = {"headers": {"Authorization": f"Bearer {TOKEN}"}} if way == "header" else {}
        settings |= {"params": {"token": TOKEN}} if way == "query" else {}
        assert talk(guarded, conversation, **settings) == {"response": "ready"}

    @pytest.mark.parametrize("message", [INIT, {**INIT, "token": "another one"}, UPDATE])
    def test_without_it_nothing_is_done(self, message: dict[str, Any], guarded: Listening) -> None:
        async def conversation(socket: Any) -> str:
            await socket.send_json(message)
            return await closed_with_words(socket)

        assert "token" in talk(guarded, conversation, headers={"Authorization": "Bearer another"})

    @pytest.mark.parametrize(
        "messages",
        [[{"command": "x" * 1000}] * 70, [{**INIT, "token": TOKEN, "name": "x" * UNKNOWN_BYTES}]],
        ids=["many", "large"],
    )
    def test_a_stranger_may_not_send_much(self, messages: list[dict[str, Any]], guarded: Listening) -> None:
        async def conversation(socket: Any) -> Any:
            with contextlib.suppress(ConnectionError):  # the server may close before the last of the messages
                for message in messages:
                    await socket.send_json(message)
            while (answer := await socket.receive()).type == aiohttp.WSMsgType.TEXT:
                assert "command" in answer.data
            return answer

        closing = talk(guarded, conversation)
        assert closing.data == 1009
        assert not missing_parts(closing.extra, UNKNOWN_BYTES, "token")
        trusted = {"Authorization": f"Bearer {TOKEN}"}

        async def may(socket: Any) -> Any:
            await socket.send_json({**INIT, "name": "x" * UNKNOWN_BYTES})
            return await socket.receive_json()

        assert talk(guarded, may, headers=trusted) == {"response": "ready"}

    def test_after_init_messages_may_be_large(self, guarded: Listening) -> None:
        large = {"command": "reset", "more": "x" * 3 * UNKNOWN_BYTES}

        async def conversation(socket: Any) -> list[str]:
            await socket.send_json({**INIT, "token": TOKEN})
            answers = [await socket.receive_json()]
            for _ in range(2):
                await socket.send_json(large)
                answers.append(await socket.receive_json())
            return answers

        done = {"response": "done"}
        assert talk(guarded, conversation) == [{"response": "ready"}, done, done]

    def test_numbers_are_not_for_strangers(self, guarded: Listening) -> None:
        assert fetch(guarded, "/metrics").status == 401
        assert fetch(guarded, "/metrics", Authorization=f"Bearer {TOKEN}").status == 200
        assert fetch(guarded, "/healthz").status == 200

    def test_pages_of_other_names_may_come_with_it(self, guarded: Listening) -> None:
        assert fetch(guarded, "/healthz", Host="game.example", Origin="https://game.example").status == 200


class TestPagesOfOthers:
    """Without a token only this machine is allowed: pages of other sites are rejected for any host name."""

    @pytest.mark.parametrize(
        "headers",
        [
            {"Host": "evil.example"},
            {"Host": "127.0.0.1.evil.example:80"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost.evil.example"},
            {"Origin": "http://[::1"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("path", ["/ws", "/metrics", "/healthz"])
    def test_are_refused(self, path: str, headers: dict[str, str], server: Listening) -> None:
        assert fetch(server, path, **headers).status == 403

    @pytest.mark.parametrize("origin", ["http://localhost:8000", "http://127.0.0.1", "http://[::1]:9"])
    def test_those_of_this_machine_are_not(self, origin: str, server: Listening) -> None:
        assert fetch(server, "/healthz", Origin=origin, Host="localhost:1").status == 200


def test_a_watcher_is_told(server: Listening) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    answer = fetch(server, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    families = {family.name: family for family in parser.text_string_to_metric_families(answer.text)}
    assert set(families) == {f"evorl_{name}" for name in server.switchboard.numbers()}
    assert families["evorl_responses_total"].samples[0].value == server.switchboard.num_answers
    value = families["evorl_mean_return"].samples[0].value
    np.testing.assert_array_equal(value, server.switchboard.mean_return)
    assert fetch(server, "/healthz").text == "ok\n"
    assert fetch(server, "/nothing").status == 404


def test_a_server_that_cannot_answer_is_not_ready() -> None:
    with listening(web="127.0.0.1:0") as server:
        assert (fetch(server, "/readyz").status, fetch(server, "/readyz").text) == (200, "ready\n")
        server.switchboard.failure = RuntimeError("the policy is gone")
        answer = fetch(server, "/readyz")
        assert (answer.status, answer.text) == (503, "the policy is gone\n")
        assert fetch(server, "/healthz").status == 200
