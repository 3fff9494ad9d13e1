"""The config tree: names of files, and environments by their short and long names."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.config_tree import as_filed, config_folder, config_names, long_names, settings_file


def test_the_files_of_a_group_are_named_and_parts_of_files_are_not(tmp_path: Path) -> None:
    for name in ("ppo.yaml", "ec/ga.yaml", "_shared.yaml", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert config_names(tmp_path) == ["ec/ga", "ppo"]


def test_tuned_settings_are_found_by_each_name_of_an_environment() -> None:
    folder = config_folder()
    assert long_names(folder)["hopper"] == "brax/hopper"
    filed = as_filed("ppo/hopper", folder)
    assert filed in config_names(folder / "experiment")
    assert as_filed("ppo/brax/hopper", folder) == filed
    assert as_filed("ppo/host/hopper", folder) == "ppo/host/hopper"  # settings of another library


@pytest.mark.parametrize(
    ("experiment", "file"),
    [
        ("ppo/hopper", "ppo/hopper"),
        ("ppo/ant", "ppo/_brax"),
        ("ppo/brax/ant", "ppo/_brax"),
        ("ppo/host/walker2d", "ppo/_mujoco"),
        ("ppo/gymnasium/HalfCheetah-v5", "ppo/_mujoco"),
        ("ppo/gymnasium/Hopper-v3", "ppo/gymnasium/Hopper-v3"),
        ("reinforce/ant", "reinforce/ant"),
    ],
)
def test_a_pair_without_settings_has_those_of_the_family(experiment: str, file: str) -> None:
    assert settings_file(experiment, config_folder()) == file


def test_settings_of_the_users_folder_precede_those_of_a_family(tmp_path: Path) -> None:
    (tmp_path / "experiment" / "ppo").mkdir(parents=True)
    (tmp_path / "experiment" / "ppo" / "ant.yaml").write_text("# @package _global_\nnum_envs: 3\n")
    assert settings_file("ppo/ant", config_folder(), [tmp_path]) == "ppo/ant"
    assert settings_file("ppo/ant", tmp_path, [config_folder()]) == "ppo/ant"
    assert settings_file("ppo/humanoid", config_folder(), [tmp_path]) == "ppo/_brax"
