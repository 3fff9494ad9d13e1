"""The template of a simulator works unchanged."""

from __future__ import annotations

import pytest

from evorl.apps.files.empty_app import Simulator, Training
from tests.support.apps import options_for
from tests.support.rlx_server import BanditServer


@pytest.mark.parametrize("right", [1, [0.5]])  # of agents with discrete actions, and with continuous ones
def test_going_right_arrives_and_going_left_is_lost(server: BanditServer, right: int | list[float]) -> None:
    server.action = right
    Training(options_for(server.port, 3)).run()
    assert all(0.8 < reward <= 1.0 for reward in server.metrics("episode_reward"))
    simulator = Simulator(seed=0)
    (start,) = simulator.reset()
    assert abs(start) <= 0.5
    for _ in range(20):
        _, reward, ended = simulator.step(0)
        if ended:
            break
    assert (reward, ended) == (-0.01, True)


def test_a_limit_is_told_as_one(server: BanditServer) -> None:
    server.action = 1
    Training(options_for(server.port, limit=2)).run()
    assert [message.get("truncated") for message in server.messages[1:4]] == [None, False, True]
    assert server.messages[3]["terminal"]
