"""Overrides are moved before flags, and overrides without effect are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli.arguments import check_overrides, overrides_first


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("agent/ppo.yaml", "experiment/ppo/gymnax/CartPole-v1.yaml", "experiment/sac/hopper.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "ordered"),
    [
        (["a=1", "-m", "seed=0,1"], ["a=1", "seed=0,1", "-m"]),
        (["--cfg", "job", "a=1", "--config-dir", "mine"], ["a=1", "--cfg", "job", "--config-dir", "mine"]),
        (["--config-dir=mine", "+a=1", "~b"], ["+a=1", "~b", "--config-dir=mine"]),
        (["-m", "a=-1,2", 'b="x y"'], ["a=-1,2", 'b="x y"', "-m"]),
        (["--cfg", "job", "experiment=null", "seed=1"], ["~experiment", "seed=1", "--cfg", "job"]),
        ([], []),
    ],
)
def test_overrides_are_put_before_flags(arguments: list[str], ordered: list[str]) -> None:
    assert overrides_first(arguments) == ordered


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "~total_timesteps",
            "~total_timesteps: a setting cannot be removed. Give it a value, such as total_timesteps=",
        ),
        ("~env.name=x", "~env.name=x: a setting cannot be removed"),
        ("experiment=sac/hoper", r"There is no experiment 'sac/hoper'. Did you mean 'sac/hopper'\?"),
        ("+experiment=zzz", "There is no experiment 'zzz'. Available: "),
    ],
)
def test_what_would_have_no_effect_is_refused(override: str, said: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=said):
        check_overrides([override], [folder])


def test_what_has_an_effect_passes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    mine = tmp_path_factory.mktemp("mine")
    (mine / "experiment").mkdir()
    (mine / "experiment" / "one.yaml").write_text("")
    overrides = ["~experiment", "experiment=null", "experiment=ppo/gymnax/CartPole-v1", "experiment=one", "seed=3"]
    check_overrides([*overrides, "~agent@inner", "+env.x=1"], [folder, mine])
