"""The settings that are compiled for a described GPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu.setting import SETTINGS, Bar, Side, read_settings
from benchmarks.gpu.sides import SIDES, make_workflow
from evorl.execution.trainable import most_timesteps

FILE = """
settings:
  small:
    title: A title
    steps: 64
    rollout: 8
    meshes: [2]
    bars: {kernels: {peer: rejax, at_most: 0.8}}
    evorl: {num_envs: 8}
    rejax: {algorithm: ppo}
"""


def test_a_mesh_is_a_side_of_its_own(tmp_path) -> None:
    (tmp_path / "settings.yaml").write_text(FILE, "utf-8")
    setting = read_settings(tmp_path / "settings.yaml")["small"]
    assert list(setting.sides) == ["evorl", "rejax", "evorl, 2 devices"]
    assert setting.sides["evorl, 2 devices"] == Side("evorl", {"num_envs": 8, "devices": 2})
    assert setting.bars == (Bar("kernels", "rejax", 0.8),)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [("peer: rejax", "peer: brax", "'brax'"), ("evorl:", "evosax:", "evorl is missing")],
)
def test_a_missing_side_is_named(tmp_path, old: str, new: str, named: str) -> None:
    (tmp_path / "settings.yaml").write_text(FILE.replace(old, new), "utf-8")
    with pytest.raises(ValueError, match=named):
        read_settings(tmp_path / "settings.yaml")


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_state_the_work_of_the_program(name: str) -> None:
    setting = SETTINGS[name]
    assert {side.program for side in setting.sides.values()} <= SIDES.keys()
    workflow = make_workflow({**setting.sides["evorl"].settings})
    assert setting.steps == most_timesteps(workflow) * (workflow.execution.num_seeds or 1)
