"""Small sizes for a dry run."""

from __future__ import annotations

import pytest

from benchmarks.gpu.setting import SETTINGS
from benchmarks.gpu.sides import make_workflow
from benchmarks.gpu.tiny import shrunk, shrunk_overrides
from evorl.execution.trainable import most_timesteps


@pytest.mark.parametrize("name", SETTINGS)
def test_a_small_setting_is_still_a_workflow(name: str) -> None:
    workflow = make_workflow(shrunk("evorl", SETTINGS[name].sides["evorl"].settings))
    assert most_timesteps(workflow) <= 4000
    assert (workflow.execution.num_seeds or 1) <= 4


def test_sizes_of_peers_agree_with_one_another() -> None:
    brax = shrunk("brax", SETTINGS["ppo_hopper"].sides["brax"].settings)
    assert brax["batch_size"] * brax["num_minibatches"] == brax["num_envs"]
    assert brax["env"] == "inverted_pendulum"
    rejax = shrunk("rejax", SETTINGS["sac_pendulum"].sides["rejax"].settings)
    assert rejax["config"]["num_epochs"] == 2
    assert rejax["config"]["buffer_size"] == 256


def test_a_training_ends_after_a_few_iterations() -> None:
    assert shrunk_overrides(["agent=ppo", "total_timesteps=150000", "eval_interval=25000"]) == [
        "agent=ppo", "total_timesteps=1024", "eval_interval=512", "eval_episodes=2",
    ]  # fmt: skip
