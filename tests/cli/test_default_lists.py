"""Config files that include themselves are rejected with the entry to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from evorl.cli.composition import evorl_hydra
from evorl.cli.default_lists import Inclusions
from tests.support.errors import raises_naming


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({"agent/mine": [{"/agent": "ppo"}]}, ("agent/mine", "/agent: ppo", "'- /agent/ppo'")),
        ({"agent/ec/mine": [{"optional /agent": "ppo"}]}, ("agent/ec/mine", "'- /agent/ppo'")),
        ({"agent/mine": [{"/agent": "mine"}]}, ("'- /agent/NAME'",)),
        ({"agent/mine": ["_self_", "mine"]}, ("agent/mine includes agent/mine",)),
        ({"agent/a": ["ppo", "b@_here_"], "agent/b": ["/agent/a"]}, ("agent/b includes agent/a includes agent/b",)),
        ({"experiment/mine": [{"agent": "sac"}]}, ("experiment/mine", "'- override /agent: sac'")),
    ],
)
def test_a_file_that_includes_itself_is_refused(files: dict[str, list], parts: tuple[str, ...]) -> None:
    inclusions = Inclusions()
    with raises_naming(ValueError, *parts):
        for path, defaults in files.items():
            inclusions.add(path, defaults, f"{path}.yaml")


@pytest.mark.parametrize(
    "files",
    [
        {"agent/mine": ["ppo", "_self_"], "agent/ppo": None},
        {"agent/meta/mine": [{"/agent@inner": "ppo"}, "optional /experiment@inner: x"]},
        {"experiment/mine": [{"override /agent": "sac"}, {"/env": "cartpole"}]},
        {"agent/a": ["c", "b"], "agent/b": ["c"], "agent/c": []},
        {"config": [{"agent": "ppo"}, {"optional experiment": "x"}, "env/_options"]},
        {"agent/mine": "not a list"},
    ],
)
def test_other_defaults_pass(files: dict[str, object]) -> None:
    inclusions = Inclusions()
    for path, defaults in files.items():
        inclusions.add(path, defaults, f"{path}.yaml")


def test_hydra_reads_no_file_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "config.yaml").write_text("defaults: [_self_, {agent: mine}]\n")
    (tmp_path / "agent" / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - /agent: ppo\nnum_envs: 8\n")
    with (
        evorl_hydra(),
        initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)),
        raises_naming(ValueError, str(tmp_path / "agent" / "mine.yaml"), "'- /agent/ppo'"),
    ):
        compose("config")
