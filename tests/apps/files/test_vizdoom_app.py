"""A ViZDoom scenario with a stand-in environment; the real one where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from evorl.apps.files.vizdoom_app import VizdoomTraining, make_env, registered_name
from tests.support.apps import options_for
from tests.support.rlx_server import BanditServer

HAS_VIZDOOM = importlib.util.find_spec("vizdoom") is not None


class Actions:
    n = 4


class Scenario:
    """Stand-in with three steps that records the calls it receives."""

    action_space = Actions()

    def __init__(self, cut: bool) -> None:
        self.cut, self.received, self.seeds = cut, [], []

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict]:
        self.received.clear()
        self.seeds.append(seed)
        return self.show(), {}

    def show(self) -> dict[str, Any]:
        return {"screen": np.full((240, 320, 3), 100, np.uint8), "gamevariables": np.zeros(1)}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        self.received.append(action)
        ends = len(self.received) == 3
        return self.show(), 2.0, ends and not self.cut, ends and self.cut, {}


@pytest.mark.parametrize("cut", [False, True])
def test_screens_are_small_and_the_last_one_is_shown_where_time_was_up(cut: bool, server: BanditServer) -> None:
    server.action = 2
    scenario = Scenario(cut)
    options = options_for(server.port, 2, action_space={"n": 4}, frames={"size": 84, "grey": True})
    VizdoomTraining(options, scenario).run()
    assert scenario.received == [2, 2, 2]
    assert scenario.seeds == [0, None]
    updates = [message for message in server.messages if message["command"] == "update"]
    assert np.asarray(updates[0]["state"]).shape == (84, 84, 1)
    assert (updates[3]["state"] is None, updates[3]["truncated"]) == (not cut, cut)
    assert server.metrics("episode_reward") == [6.0, 6.0]


def test_other_actions_than_the_file_says(server: BanditServer, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        VizdoomTraining(options_for(server.port, action_space={"n": 3}), Scenario(False))
    assert "the scenario has 4 actions" in capsys.readouterr().err


def test_a_name_of_another_release_is_answered_with_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["CartPole-v1", "VizdoomBasic-v1", "VizdoomBasic-v2", "VizdoomCorridor-v1"]
    assert registered_name("VizdoomBasic-v1", names) == "VizdoomBasic-v1"
    for name, suggestion in {"VizdoomBasic-v0": "use VizdoomBasic-v2", "Doom": "VizdoomBasic-v1 or "}.items():
        with pytest.raises(SystemExit):
            registered_name(name, names)
        assert suggestion in capsys.readouterr().err


@pytest.mark.skipif(HAS_VIZDOOM, reason="ViZDoom is installed")
def test_where_it_is_not_installed_the_line_that_installs_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_env(options_for(1))
    assert ended.value.code == 1
    assert "pip install vizdoom" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_VIZDOOM, reason="ViZDoom is not installed")
def test_two_episodes_of_the_real_one(server: BanditServer) -> None:
    server.action = 0
    options = options_for(server.port, 2, name="VizdoomBasic-v1", arguments={"frame_skip": 4})
    VizdoomTraining(options).run()
    assert len(server.metrics("episode_reward")) == 2
