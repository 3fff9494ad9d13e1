"""Robot clients use their known protocol: metadata first, then an action per observation."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from evorl.export.policy_server import PolicyServer
from evorl.export.stored_policy import LoadedPolicy
from evorl.serving.serve_settings import ServeSettings
from tests.support.errors import raises_naming
from tests.support.portable import stored

aiohttp = pytest.importorskip("aiohttp", reason="needs the extra serve")
TOKEN = "let-me-in-please"
OPTIONS = {"seed": 0}


def as_sent(array: np.ndarray) -> dict[bytes, Any]:
    """Encode an array as clients of openpi do."""
    return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape}


def talk(
    folder: Path, name: str, conversation: Callable[[Any, str], Awaitable[None]], token: str | None = None
) -> None:
    """Serve a policy and run a conversation with its address."""
    policy = dataclasses.replace(stored(name, folder), env=None)
    settings = ServeSettings(bind="127.0.0.1:0", web="127.0.0.1:0", max_clients=4, token=token)

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
                answer = msgpack.unpackb(await socket.receive_bytes())
                np.testing.assert_allclose(answer["actions"], expected(obs[number]), rtol=1e-5)
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
    ],
)
def test_what_is_no_observation_is_told_and_ends_the_connection(
    tmp_path: Path, message: bytes, parts: tuple[str, ...]
) -> None:
    async def conversation(session: Any, address: str) -> None:
        async with session.ws_connect(address + "/") as socket:
            await socket.receive_bytes()
            await socket.send_bytes(message)
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
