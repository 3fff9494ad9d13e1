"""The commands as functions of Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

import evorl
from evorl.cli.composition import compose_config
from evorl.cli.python_api import as_override
from evorl.cli.train import train_from_spec
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from tests.support.errors import raises_naming

SMALL = ["env=cartpole", "num_envs=4", "rollout_length=16", "eval_episodes=2", "log_interval=128", "eval_interval=256"]
QUIET = {"tensorboard": False, "progress": False}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_training_is_that_of_the_command_line() -> None:
    folder = evorl.train(*SMALL, seed=3, total_timesteps=512, recorders=QUIET)
    assert folder.parts[-2] == "ppo-cartpole"
    config = compose_config([*SMALL, "seed=3", "total_timesteps=512", "recorders.progress=false", "runs_folder=others"])
    train_from_spec(RunSpec.from_config(config))
    (other,) = Path("others").glob("*/*/metrics.csv")
    assert (folder / "metrics.csv").read_bytes() == other.read_bytes()
    assert "Tuned settings: ppo/cartpole" in (folder / "run.log").read_text()
    assert "total_timesteps=512" in (folder / "about.json").read_text()
    assert not HydraConfig.initialized()  # later compositions are independent


def test_a_run_goes_on_and_is_watched_compared_and_taken_away() -> None:
    folder = evorl.train(*SMALL, total_timesteps=256, recorders=QUIET)
    assert evorl.train(resume=folder, total_timesteps=512) == folder
    assert RunFolder(folder).saved_at is not None
    picture = evorl.render(run=folder, episodes=1, format="png")
    assert picture.suffix == ".png"
    assert picture.stat().st_size > 1000
    assert "CartPole" in evorl.report(folder, to="page.html").read_text()
    (policy,) = evorl.export_policy(run=folder, format="numpy")
    assert policy.is_file()


def test_a_sweep_gives_its_folder() -> None:
    folder = evorl.train(*SMALL, total_timesteps=256, recorders=QUIET, sweep={"discount": [0.9, 0.99]})
    assert len((folder / "sweep.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["gamma=0.9"], ("'gamma'", "'discount'")),
        (["agent=pop"], ("agent 'pop'",)),
        (["experiment=ppo/nowhere"], ("experiment 'ppo/nowhere'",)),
        (["-m"], ("'-m' is not a setting",)),
        (["=3"], ("'=3' is not a setting",)),
        (["num_envs=0"], ("num_envs", "got 0")),
    ],
)
def test_what_cannot_be_is_said(given: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        evorl.train(*given)
    assert not HydraConfig.initialized()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (None, "null"),
        (1e-3, "0.001"),
        ("ppo", "ppo"),
        (Path("/a/b-c.d"), "/a/b-c.d"),
        ("it's {here}", r"'it\'s {here}'"),
        ({"agent.tau": [0.1, 2]}, "{agent.tau: [0.1, 2]}"),
    ],
)
def test_values_are_written_as_on_the_command_line(value: object, written: str) -> None:
    assert as_override(value) == written
