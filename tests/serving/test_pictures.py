"""Images sent by simulators over TCP and WebSocket arrive unchanged in one batch, with their history."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from evorl.serving.packed_messages import pack_message, unpack_message
from evorl.workflows.workflow import Workflow
from tests.serving.test_training_server import Served
from tests.support.portable import CONVOLUTIONS
from tests.support.rlx_client import playing
from tests.support.scripted_simulator import PICTURE, PictureScript, remote
from tests.support.waiting import wait_until

aiohttp = pytest.importorskip("aiohttp", reason="clients over WebSocket need the extra serve")
SMALL = {"num_envs": 2, "rollout_length": 4, "learning_starts": 8, "batch_size": 4}
BY_TCP, BY_WEB = 1, 2


@pytest.fixture(scope="module")
def workflow() -> Workflow:
    spaces = {"obs_space": PICTURE, "action_space": {"n": 4}}
    return remote("dqn", spaces, SMALL | {"agent": {"network": CONVOLUTIONS}}, history=3)


class WebPlayer(threading.Thread):
    """Plays a script over WebSocket, in MessagePack, until the server closes."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            asyncio.run(self._play(PictureScript(BY_WEB)))
        except (ConnectionError, aiohttp.ClientError):
            pass  # the server has closed
        except BaseException as error:
            self.failure = error

    async def _play(self, script: PictureScript) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(self._address) as socket:

            async def ask(**message: Any) -> Any:
                await socket.send_bytes(pack_message(message))
                heard = await socket.receive()
                if heard.type is not aiohttp.WSMsgType.BINARY:
                    raise ConnectionError("the server has gone")
                answer = unpack_message(heard.data)
                assert answer["response"] in ("ready", "action"), answer
                return answer.get("data")

            await ask(command="init")
            while True:
                action = await ask(command="update", reward=None, state=script.start(), terminal=False)
                over = False
                while not over:
                    obs, reward, terminated, truncated = script.step(action)
                    over = terminated or truncated
                    ends = {"terminal": over, "truncated": truncated}
                    action = await ask(command="update", reward=reward, state=obs, **ends)


def shown(seed: int, episodes: int = 40) -> list[list[np.ndarray]]:
    """Return the images of each episode of a script."""
    script, pictures = PictureScript(seed), []
    for episode in range(episodes):
        pictures.append([script.start()])
        pictures[-1] += [script.step(0).obs for _ in range(script.lengths[episode % len(script.lengths)])]
    return pictures


def stacked(pictures: list[np.ndarray], last: int) -> np.ndarray:
    """Return the three images up to index ``last``, stacked; the first one pads the start."""
    return np.stack([pictures[max(0, last - back)] for back in (2, 1, 0)], -1)


def test_pictures_come_as_they_were_shown_with_their_history(workflow: Workflow) -> None:
    served = Served(workflow, web="127.0.0.1:0")
    assert served.server._thread is not None
    place = served.server._thread.addresses[1].partition("://")[2]
    try:
        with playing(served.address, BY_TCP, kind=PictureScript) as (client,):
            player = WebPlayer(f"http://{place}/ws")
            wait_until(lambda: served.server.switchboard.num_clients == 2)
            metrics = served.iterate(8)
        assert client.failure is None
        assert player.failure is None
    finally:
        served.server.close()
    assert metrics["serving/clients"][-1] == 2
    known = {
        stacked(pictures, at).tobytes(): (seed, episode, at)
        for seed in (BY_TCP, BY_WEB)
        for episode, pictures in enumerate(shown(seed))
        for at in range(len(pictures))
    }
    seen = set()
    for row, _ in served.rows():
        for before, after in zip(row.obs, row.next_obs, strict=True):
            assert before.dtype == np.uint8
            assert before.shape == (8, 6, 3)
            seed, episode, at = known[before.tobytes()]
            assert known[after.tobytes()] == (seed, episode, at + 1)
            seen.add((seed, episode, at))
    assert len(seen) == 8 * 2 * 4
    assert {seed for seed, _, _ in seen} == {BY_TCP, BY_WEB}
