"""Names of runs, and the origin of their settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose
from hydra.core.hydra_config import HydraConfig

from evorl.cli import main as cli
from evorl.cli import run_names
from evorl.cli.composition import initialize_configs
from evorl.cli.run_names import (
    folder_of_runs,
    has_general_defaults,
    hydra_settings,
    named_folder,
    origin_of_settings,
    refuse_other_names,
    title_of,
)
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from tests.support.command_line import SMALL
from tests.support.errors import assert_names, raises_naming

PPO = {"workflow": "evorl.algorithms.ppo.PPOWorkflow", "env": {"library": "gymnax", "name": "CartPole-v1"}, "seed": 0}


@pytest.mark.parametrize(
    ("changes", "chosen", "title"),
    [
        ({"num_seeds": 1}, {"agent": "ppo"}, "PPO on CartPole-v1, seed 0"),
        ({"num_seeds": 4, "seed": 2}, {}, "PPO on CartPole-v1, seeds 2 to 5"),
        ({"workflow": "evorl.algorithms.td3.TD3Workflow"}, {"agent": "ddpg"}, "ddpg on CartPole-v1, seed 0"),
        ({"workflow": "a.MAPElitesWorkflow"}, {"agent": "qd/map_elites"}, "MAPElites on CartPole-v1, seed 0"),
        ({"env": {"name": None, "factory": "mine:make"}}, {"agent": "ppo"}, "PPO on mine:make, seed 0"),
        (
            {"env": {"library": "gymnasium", "name": "CartPole-v1"}},
            {"agent": "ppo"},
            "PPO on CartPole-v1 (gymnasium), seed 0",
        ),
        ({"title": "wide networks"}, {"agent": "ppo"}, "wide networks"),
    ],
)
def test_titles_are_words(changes: dict, chosen: dict, title: str) -> None:
    assert title_of(RunSpec.from_config(PPO | changes), chosen) == title


def test_runs_of_a_pair_are_in_one_folder() -> None:
    assert folder_of_runs("runs", {"agent": "meta/pbt", "env": "brax/hopper"}) == Path("runs/meta-pbt-brax-hopper")
    assert folder_of_runs("runs", {}) == Path("runs/run-env")


def test_nobody_chose_in_a_notebook() -> None:
    assert origin_of_settings({}) is None


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["env=gymnax/CartPole-v1"], "Tuned settings: ppo/cartpole (500 after 100k steps)."),
        (["env=acrobot"], "Tuned settings: ppo/acrobot."),
        (["agent=meta/pbt", "env=pendulum"], "Tuned settings: ppo/pendulum."),
        (["env=ant"], "Settings of similar tasks, ppo/_brax: there are no settings tuned for ppo in ant."),
        (
            ["env=gymnasium/Pendulum-v1"],
            "Settings of similar tasks, ppo/pendulum: there are no settings tuned for ppo in gymnasium/Pendulum-v1.",
        ),
        (["agent=reinforce", "env=hopper"], "General defaults: there are no settings tuned for reinforce in hopper."),
    ],
)
def test_the_origin_of_settings(overrides: list[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"ppo/cartpole": "500 after 100k steps", "ppo/pendulum": "of PPO, not of a population"}
    monkeypatch.setattr(run_names, "recorded_result", results.get)
    compose_with(overrides, monkeypatch)
    assert origin_of_settings(hydra_settings().runtime.choices) == expected
    assert has_general_defaults(expected) == expected.startswith("General defaults")
    assert not has_general_defaults(None)


def test_a_recorded_result_is_not_of_settings_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_names, "recorded_result", lambda name: "of the shipped settings")
    settings = tmp_path / "experiment" / "ppo" / "my_cartpole.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("# @package _global_\nnum_epochs: 1\n")
    compose_with(["experiment=ppo/my_cartpole", f"hydra.searchpath=[file://{tmp_path}]"], monkeypatch)
    assert origin_of_settings(hydra_settings().runtime.choices) == "Tuned settings: ppo/my_cartpole."
    settings.rename(settings.with_name("cartpole.yaml"))
    with raises_naming(ValueError, "cartpole.yaml would be ignored"):
        compose_with([f"hydra.searchpath=[file://{tmp_path}]"], monkeypatch)


def compose_with(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose a config as the command line does; its choices are Hydra's until the test ends."""
    with initialize_configs():
        composed = compose("config", overrides=overrides, return_hydra_config=True)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    HydraConfig.instance().set_config(composed)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["hydra.sweep.dir=a b"], ["hydra.sweep.dir=a b applies only to sweeps (-m)", "'hydra.run.dir=a b'"]),
        (["hydra.sweep.subdir=x"], ["hydra.run.dir=FOLDER"]),
        (["-m", "hydra.run.dir=x"], ["hydra.run.dir=x applies only to single runs", "hydra.sweep.dir=x"]),
        (["hydra.job.name=x"], ["hydra.job.name=x", "title=NAME"]),
        (["++hydra.job.chdir=true"], ["hydra.job.chdir=true", "hydra.run.dir=FOLDER"]),
        (["hydra.runtime.output_dir=x"], ["hydra.run.dir=FOLDER"]),
        (["hydra.output_subdir=x"], ["hydra.output_subdir=x"]),
        (["hydra/launcher=joblib"], ["hydra/launcher=joblib", "-m"]),
        (["hydra.sweeper.params={seed: 1}"], ["hydra.sweeper.params", "-m"]),
        (["-m", "hydra.sweep.subdir=x"], ["hydra.sweep.subdir=x", "${hydra.job.num}"]),
    ],
)
def test_a_name_that_would_be_ignored_is_refused(arguments: list[str], parts: list[str]) -> None:
    with raises_naming(ValueError, *parts):
        refuse_other_names(arguments, names_a_run=False)


@pytest.mark.parametrize(
    ("arguments", "names_a_run"),
    [
        (["hydra.run.dir=x"], False),
        (["-m", "hydra.sweep.dir=x", "hydra.sweep.subdir=y-${hydra.job.num}"], False),
        (["--multirun", "hydra/launcher=basic", "hydra.launcher.x=1"], False),
        (["hydra.job.chdir=false"], False),
        (["resume=x", "seed=1"], True),
    ],
)
def test_others_pass(arguments: list[str], names_a_run: bool) -> None:
    refuse_other_names(arguments, names_a_run)


def test_a_stored_run_stays_in_its_folder(run, trained: RunFolder) -> None:
    assert_names(run(cli.train, f"resume={trained.path}", "hydra.run.dir=x")[1], "hydra.run.dir=x", "no effect")
    assert_names(run(cli.evaluate, f"run={trained.path}", "hydra.run.dir=x")[1], "hydra.run.dir=x", "no effect")


def test_the_folder_of_a_run_is_the_one_named(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "total_timesteps=64", "hydra.run.dir=my runs/${now:%Y}"]
    assert run(cli.train, *arguments)[1] == ""
    (own,) = (tmp_path / "my runs").iterdir()
    assert own.name.isdigit()
    assert RunFolder(own).load_config().total_timesteps == 64
    assert own.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["my runs"]
    assert f"resume={own}" in run(cli.train, *SMALL, f"hydra.run.dir={own}")[1]


def test_a_sweeper_of_hydras_places_runs_as_it_is_told(run, tmp_path: Path) -> None:
    folders = [f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir='job ${hydra.job.num}'"]
    assert run(cli.train, "-m", *SMALL, "total_timesteps=64", *folders, "seed=3,4")[1] == ""
    seeds = {path.name: RunFolder(path).load_config().seed for path in tmp_path.iterdir() if path.is_dir()}
    assert seeds == {"job 0": 3, "job 1": 4}


def test_interpolations_in_the_folder_of_a_sweep_are_resolved(tmp_path: Path) -> None:
    folder, others = named_folder(["seed=0,1", f"hydra.sweep.dir={tmp_path}/${{now:%Y}}"], "hydra.sweep.dir")
    assert folder is not None
    assert folder.parent == tmp_path
    assert folder.name.isdigit()
    assert others == ["seed=0,1"]
    assert named_folder(["seed=0"], "hydra.sweep.dir") == (None, ["seed=0"])
