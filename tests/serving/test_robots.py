"""Robot clients use their known protocol: metadata first, then an action per observation."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace
from evorl.export import policy_server
from evorl.export.policy_server import PolicyServer
from evorl.export.portable_policy import Port
from evorl.export.stored_policy import LoadedPolicy
from evorl.serving.packed_messages import unpack_message
from evorl.serving.serve_settings import ServeSettings
from tests.support.errors import assert_names, raises_naming
from tests.support.portable import portable_function, stored

aiohttp = pytest.importorskip("aiohttp", reason="needs the extra serve")
TOKEN = "let-me-in-please"
OPTIONS = {"seed": 0}


def as_sent(array: np.ndarray) -> dict[bytes, Any]:
    """Encode an array as clients of openpi do."""
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}


def talk(
    folder: Path,
    policy: Any,
    conversation: Callable[[Any, str], Awaitable[None]],
    token: str | None = None,
    **limits: Any,
) -> None:
    """Serve a policy, or one of ``POLICIES`` by name, and run a conversation with its address."""
    if isinstance(policy, str):
        policy = dataclasses.replace(stored(policy, folder), env=None)
    settings = ServeSettings(bind="127.0.0.1:0", web="127.0.0.1:0", max_clients=4, token=token, **limits)

    async def main(address: str) -> None:
        async with aiohttp.ClientSession() as session:
            await asyncio.wait_for(conversation(session, address), 30)

    with PolicyServer(policy, settings, OPTIONS) as server:
        asyncio.run(main(server.addresses[1]))
        server.refuse_failure()


def test_an_observation_is_answered_with_actions(tmp_path: Path) -> None:
    policy = stored("ppo_gru_history", tmp_path).policy
    expected = LoadedPolicy(policy)
    obs = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)

    async def conversation(session: Any, address: str) -> None:
        async with session.ws_connect(address + "/") as socket:
            metadata = msgpack.unpackb(await socket.receive_bytes())
            assert metadata["env"] == "gymnax/Pendulum-v1"
            assert metadata["obs_space"]["shape"] == [3]
            for number, message in enumerate(({}, {}, {"reset": True})):
                if "reset" in message:
                    expected.reset()
                await socket.send_bytes(msgpack.packb({"state": as_sent(obs[number]), **message}))
                answer = unpack_message(await socket.receive_bytes())
                np.testing.assert_allclose(answer["actions"], [expected(obs[number])], rtol=1e-5)
                assert answer["server_timing"]["infer_ms"] > 0

    talk(tmp_path, "ppo_gru_history", conversation)


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (b"\xc1", ("MessagePack",)),
        (msgpack.packb([1, 2]), ("map",)),
        (msgpack.packb({"state": [1.0, 2.0]}), ("state", "shape [3]", "got [2]")),
        (msgpack.packb({"a": 1, "b": 2}), ("array", "obs", "observation", "state")),
        (msgpack.packb({"reset": 1, "state": [0.0, 0.0, 0.0]}), ("reset", "true or false")),
        ('{"state": [0.0, 0.0, 0.0]}', ("MessagePack", "text frame")),
    ],
)
def test_what_is_no_observation_is_told_and_ends_the_connection(
    tmp_path: Path, message: bytes | str, parts: tuple[str, ...]
) -> None:
    async def conversation(session: Any, address: str) -> None:
        async with session.ws_connect(address + "/") as socket:
            await socket.receive_bytes()
            await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))
            with raises_naming(ValueError, *parts):
                raise ValueError(await socket.receive_str())
            assert (await socket.receive()).type == aiohttp.WSMsgType.CLOSE
        async with session.get(address + "/healthz") as answer:
            assert answer.status == 200

    talk(tmp_path, "ppo_normalized", conversation)


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    async def conversation(session: Any, address: str) -> None:
        for headers in ({}, {"Authorization": "Api-Key another-one"}):
            with raises_naming(aiohttp.WSServerHandshakeError, 401):
                await session.ws_connect(address + "/", headers=headers)
        async with session.ws_connect(address + "/", headers={"Authorization": f"Api-Key {TOKEN}"}) as socket:
            assert "action_space" in msgpack.unpackb(await socket.receive_bytes())

    talk(tmp_path, "ppo_normalized", conversation, TOKEN)


def test_a_client_above_the_limit_receives_the_reason(tmp_path: Path) -> None:
    async def conversation(session: Any, address: str) -> None:
        sockets = [await session.ws_connect(address + "/") for _ in range(5)]  # max_clients=4
        for socket in sockets:
            assert "action_space" in msgpack.unpackb(await socket.receive_bytes())
        with raises_naming(ValueError, "max_clients=4", "try again"):
            raise ValueError(await sockets[4].receive_str())
        closing = await sockets[4].receive()
        assert (closing.type, closing.data) == (aiohttp.WSMsgType.CLOSE, 1011)
        await sockets[0].send_bytes(msgpack.packb({"state": [0.0, 0.0, 0.0]}))
        assert "actions" in msgpack.unpackb(await sockets[0].receive_bytes())
        for socket in sockets:
            await socket.close()

    talk(tmp_path, "ppo_normalized", conversation)


@pytest.mark.parametrize("character", ["é", "€", "🤖"])
def test_a_long_reason_is_cut_between_characters(character: str, tmp_path: Path) -> None:
    """Close frames hold the start of the error, valid UTF-8 at every position of the cut."""

    async def conversation(session: Any, address: str) -> None:
        for offset in range(4):
            async with session.ws_connect(address + "/") as socket:
                await socket.receive_bytes()
                await socket.send_bytes(msgpack.packb({"reset": "x" * offset + character * 100, "state": [0.0] * 3}))
                text = await socket.receive_str()
                closing = await socket.receive()
                assert (closing.type, closing.data) == (aiohttp.WSMsgType.CLOSE, 1011)
                assert text.startswith(closing.extra)
                assert 116 < len(closing.extra.encode()) <= 120

    talk(tmp_path, "ppo_normalized", conversation)


@pytest.mark.parametrize(
    ("space", "shapes"),
    [
        (Discrete(3), (1,)),
        (Box(-1.0, 1.0, (2,)), (1, 2)),
        (Box(-1.0, 1.0, (2, 3)), (1, 2, 3)),
        (
            DictSpace({"arms": TupleSpace([Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, ())]), "grip": Discrete(2)}),
            {"arms": [(1, 2), (1,)], "grip": (1,)},
        ),
    ],
)
def test_actions_are_chunks_of_one_step(space: Space, shapes: Any, tmp_path: Path) -> None:
    leaves = jax.tree.leaves(space.spec)
    policy = dataclasses.replace(
        portable_function(lambda x: x, (1,)),
        results=tuple(Port(f"action_{i}", leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)),
        row=lambda x: tuple(jnp.ones(leaf.shape, leaf.dtype) for leaf in leaves),
        action_space=space,
    )

    async def conversation(session: Any, address: str) -> None:
        async with session.ws_connect(address + "/") as socket:
            await socket.receive_bytes()
            await socket.send_bytes(msgpack.packb({"obs": [0.0]}))
            actions = unpack_message(await socket.receive_bytes())["actions"]
            assert jax.tree.map(np.shape, actions) == shapes
            assert [leaf.dtype for leaf in jax.tree.leaves(actions)] == [leaf.dtype for leaf in leaves]

    talk(tmp_path, dataclasses.replace(stored("dqn", tmp_path), policy=policy, env=None), conversation)


def test_a_silent_client_is_disconnected(tmp_path: Path) -> None:
    """Pings, which libraries send by themselves, do not count as messages. A client that talks stays connected."""

    async def pings(socket: Any) -> None:
        with contextlib.suppress(ConnectionError):
            while not socket.closed:
                await socket.ping()
                await asyncio.sleep(0.05)

    async def conversation(session: Any, address: str) -> None:
        async with session.ws_connect(address + "/") as talks, session.ws_connect(address + "/") as silent:
            for socket in (talks, silent):
                assert "action_space" in msgpack.unpackb(await socket.receive_bytes())
            pinging, closing = asyncio.create_task(pings(silent)), asyncio.create_task(silent.receive())
            while not closing.done():
                await talks.send_bytes(msgpack.packb({"state": [0.0] * 3}))
                assert "actions" in unpack_message(await talks.receive_bytes())
            message = closing.result()
            assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 1008, "timed out")
            pinging.cancel()

    talk(tmp_path, "ppo_normalized", conversation, idle_seconds=1.0)


def test_a_client_that_sends_too_much_is_disconnected(tmp_path: Path) -> None:
    async def conversation(session: Any, address: str) -> None:
        async with session.ws_connect(address + "/") as socket:
            await socket.receive_bytes()
            for _ in range(20):
                await socket.send_bytes(msgpack.packb({"state": [0.0] * 3}))
            while (answer := await socket.receive()).type == aiohttp.WSMsgType.BINARY:
                pass
            assert_names(answer.data, "max_messages_per_second=1")

    talk(tmp_path, "ppo_normalized", conversation, max_messages_per_second=1)


def test_the_metadata_are_those_of_the_policy_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = dataclasses.replace(stored("ppo_normalized", tmp_path), env=None)
    new = dataclasses.replace(
        old, timesteps=128, title="another", policy=dataclasses.replace(old.policy, action_repeat=2)
    )
    monkeypatch.setattr(policy_server, "_loaded", lambda _: new)

    async def metadata(address: str) -> dict[str, Any]:
        async with aiohttp.ClientSession() as session, session.ws_connect(address + "/") as socket:
            return msgpack.unpackb(await asyncio.wait_for(socket.receive_bytes(), 30))

    settings = ServeSettings(bind="127.0.0.1:0", web="127.0.0.1:0", max_clients=1)
    with PolicyServer(old, settings, OPTIONS) as server:
        before = asyncio.run(metadata(server.addresses[1]))
        assert server.look_for_newer()
        after = asyncio.run(metadata(server.addresses[1]))
    assert (before["timesteps"], before["action_repeat"]) == (64, 1)
    assert after == {**before, "timesteps": 128, "env": "another", "action_repeat": 2}
