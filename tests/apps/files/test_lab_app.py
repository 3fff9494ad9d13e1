"""DeepMind Lab, with a stand-in for its class ``Lab``."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from evorl.apps.files.app_options import Options
from evorl.apps.files.lab_app import ACTIONS, LabTraining
from tests.support.apps import options_for
from tests.support.rlx_server import BanditServer


class Lab:
    """Stand-in that ends after three actions."""

    def __init__(self, level: str, observations: list[str], config: dict[str, str]) -> None:
        self.level, self.requested, self.config = level, observations, config
        self.steps: list[tuple[Any, int]] = []
        self.seeds: list[int | None] = []
        self.left = 0

    def reset(self, seed: int | None = None) -> None:
        self.seeds.append(seed)
        self.left = 3

    def is_running(self) -> bool:
        return self.left > 0

    def observations(self) -> dict[str, np.ndarray]:
        assert self.is_running(), "nothing is to be seen after the end"
        return {"RGB_INTERLEAVED": np.full((84, 84, 3), 60, np.uint8)}

    def step(self, action: np.ndarray, num_steps: int) -> float:
        assert action.dtype == np.intc
        self.steps.append((tuple(action.tolist()), num_steps))
        self.left -= 1
        return 1.5


def test_an_episode_of_a_level_ends_without_a_state(server: BanditServer) -> None:
    server.action = 2
    options = options_for(server.port, 2, level="mine", actions="small", action_space={"n": 3}, frames={"size": 42})
    training = LabTraining(options, Lab)
    training.run()
    lab = training.lab
    assert (lab.level, lab.requested, lab.config) == (
        "mine",
        ["RGB_INTERLEAVED"],
        {"width": "84", "height": "84", "fps": "60"},
    )
    assert lab.steps == 6 * [(ACTIONS["forward"], 4)]
    assert len(set(lab.seeds)) == 2
    updates = [message for message in server.messages if message["command"] == "update"]
    assert [update["terminal"] for update in updates[:4]] == [False, False, False, True]
    assert updates[3]["state"] is None
    assert updates[3]["reward"] == 1.5
    assert np.asarray(updates[0]["state"]).shape == (42, 42, 1)
    assert server.metrics("episode_reward") == [4.5, 4.5]


def test_simulators_play_different_episodes_in_a_reproducible_order(server: BanditServer) -> None:
    server.action = 0
    seeds = []
    for number in (0, 1, 0):
        options = options_for(server.port, 3, action_space={"n": 3}, frames={"size": 4}, seed=5)
        training = LabTraining(Options({**options.values, "number": number}), Lab)
        training.run()
        seeds.append(training.lab.seeds)
    assert seeds[0] == seeds[2]
    assert len({*seeds[0], *seeds[1]}) == 6


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"actions": "tiny"}, "one of small, medium, full"),
        ({"actions": "full", "action_space": {"n": 3}}, "has 11 actions"),
    ],
)
def test_actions_that_cannot_be(environment: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        LabTraining(options_for(1, **environment), Lab)
    assert ended.value.code == 1
    assert message in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("deepmind_lab") is not None, reason="DeepMind Lab is installed")
def test_where_it_is_not_installed_how_to_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        LabTraining(options_for(1))
    assert ended.value.code == 1
    assert "pip install deepmind_lab" in capsys.readouterr().err
