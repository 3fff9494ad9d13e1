"""The config tree: names of files, and environments by their short and long names."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.config_tree import (
    as_filed,
    config_folder,
    config_names,
    is_own_file,
    long_names,
    refuse_hidden_files,
    settings_file,
)
from tests.support.errors import raises_naming


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
        ("ppo/host/ant", "ppo/_mujoco"),
        ("ppo/gymnasium/HalfCheetah-v5", "ppo/_mujoco"),
        ("ppo/gymnasium/Hopper-v3", "ppo/gymnasium/Hopper-v3"),
        ("reinforce/ant", "reinforce/ant"),
        ("ppo/gymnasium/Pendulum-v1", "ppo/pendulum"),  # the same task in another library
        ("impala/gymnasium/CartPole-v1", "impala/gymnasium/CartPole-v1"),
        ("pqn/gymnasium/CartPole-v1", "pqn/cartpole"),
        ("pqn/gymnasium/Acrobot-v1", "pqn/_classic_control"),
        ("pqn/mountain_car", "pqn/_mountain_car"),  # listed before classic_control
        ("crossq/mountain_car_continuous", "crossq/_mountain_car_continuous"),
        ("dqn/atari/pong", "dqn/_atari"),
        ("ppo/envpool/Pong-v5", "ppo/envpool/Pong-v5"),
    ],
)
def test_a_pair_without_settings_has_those_of_the_family(experiment: str, file: str) -> None:
    assert settings_file(experiment, config_folder()) == file


def test_a_file_is_its_own_only_for_its_environment() -> None:
    folder = config_folder()
    assert is_own_file("ppo/hopper", "ppo/brax/hopper", folder)
    assert not is_own_file("ppo/pendulum", "ppo/gymnasium/Pendulum-v1", folder)
    assert not is_own_file("ppo/_brax", "ppo/ant", folder)


def test_files_of_a_family_precede_files_of_an_environment_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "experiment" / "ppo").mkdir(parents=True)
    (tmp_path / "experiment" / "_families.yaml").write_text("first: [a/*]\nsecond: [a/*, b/*]\n")
    for name in ("first", "second", "_second"):
        (tmp_path / "experiment" / "ppo" / f"{name}.yaml").write_text("")
    assert settings_file("ppo/a/task", tmp_path) == "ppo/first"
    assert settings_file("ppo/b/task", tmp_path) == "ppo/_second"
    assert settings_file("sac/b/task", tmp_path) == "sac/b/task"


def test_settings_of_the_users_folder_precede_those_of_a_family(tmp_path: Path) -> None:
    (tmp_path / "experiment" / "ppo").mkdir(parents=True)
    (tmp_path / "experiment" / "ppo" / "ant.yaml").write_text("# @package _global_\nnum_envs: 3\n")
    assert settings_file("ppo/ant", config_folder(), [tmp_path]) == "ppo/ant"
    assert settings_file("ppo/ant", tmp_path, [config_folder()]) == "ppo/ant"
    assert settings_file("ppo/humanoid", config_folder(), [tmp_path]) == "ppo/_brax"


@pytest.mark.parametrize(
    ("file", "shipped", "choice"),
    [
        ("agent/reinforce", "agent/reinforce", "agent=my_reinforce"),
        ("env/brax/hopper", "env/brax/hopper", "env=brax/my_hopper"),
        ("experiment/ppo/cartpole", "experiment/ppo/cartpole", "experiment=ppo/my_cartpole"),
        ("experiment/ppo/brax/hopper", "experiment/ppo/hopper", "experiment=ppo/brax/my_hopper"),  # its other name
        ("experiment/ppo/_brax", "experiment/ppo/_brax", "experiment=ppo/my__brax"),
    ],
)
def test_a_file_of_the_user_that_hydra_would_ignore_is_refused(
    file: str, shipped: str, choice: str, tmp_path: Path
) -> None:
    for name in ("agent/my_reinforce", "agent/own/ppo", "experiment/ppo/ant", "experiment/_families"):
        (tmp_path / f"{name}.yaml").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text("")
    refuse_hidden_files(tmp_path)  # none of these has the name of a shipped file of a group
    refuse_hidden_files(config_folder())
    (tmp_path / f"{file}.yaml").parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / f"{file}.yaml").write_text("")
    with raises_naming(ValueError, str(tmp_path / file), str(config_folder() / shipped), "Rename", choice):
        refuse_hidden_files(tmp_path)


def test_a_config_of_the_user_that_hydra_would_ignore_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("num_envs: 3\n")
    with raises_naming(ValueError, str(tmp_path / "config.yaml"), "experiment=my_settings"):
        refuse_hidden_files(tmp_path)
