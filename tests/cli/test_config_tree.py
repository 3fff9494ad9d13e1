"""The config tree: names of files, and environments by their short and long names."""

from __future__ import annotations

from pathlib import Path

from evorl.cli.config_tree import as_filed, config_folder, config_names, long_names


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
