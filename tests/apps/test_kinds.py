"""Kinds of simulators from which apps are created."""

from __future__ import annotations

import importlib.util

import pytest

from evorl.apps.app_files import environment_entry
from evorl.apps.app_text import read_mapping
from evorl.apps.kinds import IMAGE_KINDS, KINDS, default_training
from tests.support.errors import raises_naming


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("in_boxes", [False, True])
def test_every_kind_says_its_spaces_and_starts_its_script(name: str, in_boxes: bool) -> None:
    kind = KINDS[name]
    if in_boxes and name in IMAGE_KINDS:
        with raises_naming(ValueError, "sends images", "agent"):
            environment_entry(kind, in_boxes)
        return
    environment = read_mapping(environment_entry(kind, in_boxes), name)["environment"]
    assert environment["run"] == ["python", f"environment/{kind.script}.py"]
    assert set(environment["action_space"]) == ({"shape", "low", "high"} if in_boxes else {"n"})
    assert "shape" in environment["obs_space"]


@pytest.mark.parametrize("in_boxes", [False, True])
def test_environments_of_gymnasium_are_registered(in_boxes: bool) -> None:
    import gymnasium

    entry = read_mapping(environment_entry(KINDS["gymnasium"], in_boxes), "gymnasium")["environment"]
    assert entry["name"] in gymnasium.registry
    doom = read_mapping(environment_entry(KINDS["vizdoom"], False), "vizdoom")["environment"]
    if importlib.util.find_spec("vizdoom") is None:
        assert doom["name"] == "VizdoomBasic-v1"
    else:
        importlib.import_module("vizdoom.gymnasium_wrapper")
        assert doom["name"] in gymnasium.registry


def test_a_bandit_learns_from_small_batches_and_pictures_by_convolutions() -> None:
    bandit = default_training("reinforce", "bandit", False, False)
    assert bandit["rollout_length"] * bandit["num_envs"] * 50 <= 6400
    assert default_training("dqn", "bandit", True, False)["learning_starts"] < 640
    assert default_training("dqn", "vizdoom", True, False)["replay_capacity"] * 84 * 84 * 8 < 2e9
    assert default_training("impala", "deepmind-lab", False, False)["agent"]["network"]["torso"] == "nature"
    assert default_training("ppo", "gymnasium", False, False) == {}
