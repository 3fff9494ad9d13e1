"""The commands as functions of Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import get_type_hints

import flax.linen as nn
import jax
import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import evorl
from evorl.cli import option_types, options
from evorl.cli.composition import compose_config
from evorl.cli.python_api import as_override
from evorl.cli.train import train_from_spec
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from tests.cli import test_compare
from tests.support.errors import raises_naming
from tests.support.faulty_envs import OtherShape, Walk


class Narrow(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(8)(x)


SMALL = ["env=cartpole", "num_envs=4", "rollout_length=16", "eval_episodes=2", "log_interval=128", "eval_interval=256"]
COMPARED = [word for word in test_compare.SMALL if not word.startswith("total_timesteps")]
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


def test_classes_stand_for_their_names() -> None:
    options = {"env.max_episode_steps": 20, "agent.network.torso": [Narrow, 8]}
    folder = evorl.train(*SMALL[1:], env=Walk, total_timesteps=128, recorders=QUIET, **options)
    config = OmegaConf.load(folder / "config.yaml")
    assert config.env.factory == "tests.support.faulty_envs:Walk"
    assert config.agent.network.torso == [f"{__name__}:Narrow", 8]
    with raises_naming(ValueError, "env=user", "env.factory=my_envs:Walk"):
        evorl.train(env="my_envs:Walk")


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


def test_a_run_is_evaluated_with_other_settings(trained: RunFolder) -> None:
    few = evorl.evaluate(trained.path, eval_episodes=3, seed=5)
    assert (few.run, few.checkpoint, few.episodes) == (trained.path, "best", 3)
    assert 0 < few.timesteps <= 128
    assert few.mean_return == few.metrics["episode_return"] == few.metrics["episode_length"]  # 1 for each step
    assert 1 <= few.mean_return <= 10
    assert evorl.evaluate(str(trained.path), eval_episodes=3, seed=5).mean_return == few.mean_return
    with raises_naming(ValueError, "num_envs", "eval_episodes"):
        evorl.evaluate(trained.path, num_envs=3)
    with raises_naming(RunFolderError, "nowhere"):
        evorl.evaluate("nowhere")


def test_a_policy_plays_in_another_library(trained: RunFolder) -> None:
    picture = evorl.play(trained.path, env="gymnasium/CartPole-v1", max_steps=5, to=Path("play.gif"))
    assert picture is not None
    assert picture.stat().st_size > 100


def test_agents_are_compared_and_the_arguments_of_the_process_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    arguments = sys.argv[:]
    page = evorl.compare("reinforce", "a2c", *COMPARED, seeds=3, total_timesteps=256)  # programs of test_compare.py
    assert page is not None
    assert "a2c" in page.read_text()
    assert sys.argv == arguments
    assert evorl.compare(resume=page.parent) == page  # everything is trained, the report is written again
    with raises_naming(ValueError, "'discount'"):
        evorl.compare("reinforce", "a2c", gamma=0.9)
    with raises_naming(ValueError, "agent=ppo", "'pendulumm'", "'pendulum'"):
        evorl.compare("ppo", "a2c", env="pendulumm")
    with raises_naming(ValueError, "two different agents"):
        evorl.compare("ppo")
    assert sys.argv == arguments
    assert "HYDRA_FULL_ERROR" not in os.environ
    assert not HydraConfig.initialized()


def test_an_environment_is_checked_by_its_class() -> None:
    trial = evorl.check_env(Walk, steps=6, num_envs=2)
    assert trial.num_steps == 12
    assert evorl.check_env(f"{Walk.__module__}:Walk", steps=6, num_envs=2).rewards == trial.rewards
    with raises_naming(ValueError, "OtherShape", "shape"):
        evorl.check_env(OtherShape)
    with raises_naming(ValueError, "lambda", "top level"):
        evorl.check_env(lambda: Walk())


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ("cartpole", "gymnax/CartPole-v1"),
        ("gymnax/Pendulum-v1", "gymnax/Pendulum-v1"),
        ("cartpole_hidden_velocities", "gymnax/CartPole-v1"),
        (Walk, f"{Walk.__module__}:Walk"),
        (f"{Walk.__module__}:Walk", f"{Walk.__module__}:Walk"),
    ],
)
def test_environments_are_made_as_on_the_command_line(env: str | type, title: str) -> None:
    made = evorl.make(env, 3, max_episode_steps=7)
    assert (made.title, made.num_envs, made.max_episode_steps) == (title, 3, 7)
    obs = jax.eval_shape(made.reset, jax.random.key(0)).obs
    assert obs.shape == (3, *made.obs_space.shape)
    if env == "cartpole_hidden_velocities":
        assert made.obs_space.shape == (2,)


def test_a_simulator_is_made_and_stepped() -> None:
    env = evorl.make("gymnasium/Pendulum-v1", num_envs=2)
    try:
        state = env.reset(jax.random.key(0))
        assert np.asarray(state.obs).shape == (2, 3)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("env", "options", "parts"),
    [
        ("cartpol", {}, ("'cartpol'", "'cartpole'")),
        ("gymnax/CartPole-v9", {}, ("CartPole-v9", "CartPole-v1")),
        ("cartpole", {"max_steps": 3}, ("max_steps",)),
        ("cartpole", {"history": 0}, ("history", "0")),
        ("no_module_of_mine:Env", {}, ("no_module_of_mine",)),
        (lambda: None, {}, ("lambda", "top level")),
    ],
)
def test_what_cannot_be_made_is_said(env: str, options: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        evorl.make(env, **options)


@pytest.mark.parametrize(
    ("types", "options", "positional"),
    [
        (option_types.RenderOptions, options.RENDER, {"run"}),
        (option_types.PackOptions, options.PACK, {"run"}),
        (option_types.PlayOptions, options.PLAY, {"run"}),
        (option_types.ReportOptions, options.REPORT, set()),
        (option_types.ExportOptions, options.EXPORT, {"run", "format"}),
        (option_types.CheckEnvOptions, options.CHECK_ENV, {"arguments"}),
    ],
)
def test_types_of_options_are_those_of_the_commands(types: type, options: dict, positional: set[str]) -> None:
    assert set(get_type_hints(types)) == options.keys() - positional


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
