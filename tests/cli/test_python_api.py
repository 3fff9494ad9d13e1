"""The commands as functions of Python."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import flax.linen as nn
import hydra
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

import evorl
from evorl.cli import compare, option_types, options, python_api, train
from evorl.cli.command_options import read_options
from evorl.cli.composition import compose_config
from evorl.cli.python_api import as_override
from evorl.cli.train import train_from_spec
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.sweep_folder import SweepFolder
from evorl.training.start import RunPlace, Trained
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


def test_a_training_is_that_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "STARTED", train.STARTED - 10_000)  # only a command counts its seconds from there
    folder = evorl.train(*SMALL, seed=3, total_timesteps=512, recorders=QUIET)
    assert folder.parts[-2] == "ppo-cartpole"
    config = compose_config([*SMALL, "seed=3", "total_timesteps=512", "recorders.progress=false", "runs_folder=others"])
    train_from_spec(RunSpec.from_config(config))
    (other,) = Path("others").glob("*/*/metrics.csv")
    assert (folder / "metrics.csv").read_bytes() == other.read_bytes()
    assert "Tuned settings: ppo/cartpole" in (folder / "run.log").read_text()
    assert "total_timesteps=512" in (folder / "about.json").read_text()
    seconds = [int(re.findall(r"\((\d+) s in", (run / "run.log").read_text())[0]) for run in (folder, other.parent)]
    assert seconds[0] < 10_000 < seconds[1]
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
    assert RunFolder(folder).saved_at() is not None
    picture = evorl.render(run=folder, episodes=1, format="png")
    assert picture.suffix == ".png"
    assert picture.stat().st_size > 1000
    assert "CartPole" in evorl.report(folder, to="page.html").read_text()
    (policy,) = evorl.export_policy(run=folder, format="numpy")
    assert policy.is_file()


def test_a_sweep_gives_its_folder() -> None:
    folder = evorl.train(*SMALL, total_timesteps=256, recorders=QUIET, sweep={"discount": [0.9, 0.99]})
    assert len((folder / "sweep.csv").read_text().splitlines()) == 3


def test_a_sweep_of_runs_goes_on_as_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = SweepFolder.create(tmp_path, [], [([*SMALL, f"seed={seed}"], {"seed": str(seed)}) for seed in (0, 1)])
    trained: list[int] = []

    def train_run(spec: RunSpec, place: RunPlace) -> Trained:
        trained.append(spec.seed)
        return Trained(1.0, False, place.root / str(place.name))

    monkeypatch.setattr(train, "train_run", train_run)
    before = sys.argv[:]
    assert evorl.train(resume=sweep.path) == sweep.path
    assert trained == [0, 1]
    assert {run.state for run in SweepFolder.open(sweep.path).runs} == {"finished"}
    assert sys.argv == before
    assert evorl.train(resume=sweep.path.name, runs_folder=tmp_path) == sweep.path
    with raises_naming(ValueError, "num_envs=8", "sweep"):
        evorl.train(resume=sweep.path, num_envs=8)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["gamma=0.9"], ("'gamma'", "'discount'")),
        (["agent=pop"], ("agent 'pop'",)),
        (["experiment=ppo/nowhere"], ("experiment 'ppo/nowhere'",)),
        (["-m"], ("'-m' is not a setting",)),
        (["=3"], ("'=3' is not a setting",)),
        (["num_envs=0"], ("num_envs", "got 0")),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        evorl.train(*arguments)
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


def test_a_program_with_hydra_of_its_own_trains_compares_and_makes_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []

    def trained(spec: RunSpec, overrides: Sequence[str] = (), place: RunPlace | None = None) -> Trained:
        ended.append(spec.workflow["workflow"].rpartition(".")[2])
        return Trained(1.0, False, tmp_path)

    def app(config: DictConfig) -> None:
        ended.append(evorl.make("cartpole", 3).num_envs)
        ended.append(evorl.train(*SMALL, total_timesteps=256, recorders=QUIET))
        ended.append(evorl.compare("reinforce", "a2c", *COMPARED, seeds=3, total_timesteps=256))
        ended.append(HydraConfig.get().overrides.task[0])

    for module in (python_api, train):  # ``train`` has the trainings of comparisons
        monkeypatch.setattr(module, "train_run", trained)
    monkeypatch.setattr(compare, "report_of", lambda *_: SimpleNamespace(groups=[], unequal_steps=None))
    monkeypatch.setattr(compare, "write_page", lambda *_: tmp_path / "page.html")
    settings = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    monkeypatch.setattr(sys, "argv", ["app.py", "+mine=1", *settings, f"hydra.run.dir={tmp_path}/app"])
    handlers = logging.root.handlers[:]
    hydra.main(version_base="1.3", config_path=str(tmp_path))(app)()
    assert logging.root.handlers == handlers
    expected = [3, "PPOWorkflow", tmp_path, "ReinforceWorkflow", "A2CWorkflow", tmp_path / "page.html", "+mine=1"]
    assert ended == expected


def test_an_environment_is_checked_by_its_class() -> None:
    trial = evorl.check_env(Walk, steps=6, num_envs=2)
    assert trial.num_steps == 12
    assert evorl.check_env(f"{Walk.__module__}:Walk", steps=6, num_envs=2).rewards == trial.rewards
    with raises_naming(ValueError, "OtherShape", "shape"):
        evorl.check_env(OtherShape)
    with raises_naming(ValueError, "lambda", "top level"):
        evorl.check_env(lambda: Walk())


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8) | st.sampled_from(
    ["on", "yes", "no", "~", "1e3", "007", "it's", "a: b", "# c", "back\\", "\\'", "${x}", "a, b", "null", "[", "é\n"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["on", "y", "mode"]), inner),
    max_leaves=6,
)


@hypothesis.given(st.dictionaries(st.sampled_from(["no", "a", "off"]), VALUES))
def test_arguments_of_an_environment_are_passed_as_they_are(arguments: dict) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_api, "command", lambda command_line: command_line)
        command_line: Any = evorl.check_env(Walk, arguments=arguments, steps=7)
    read, _ = read_options(command_line[2:], options.CHECK_ENV, "evorl check-env")
    assert (read["arguments"], read["steps"]) == (arguments, 7)


def test_an_option_that_is_text_is_not_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_api, "command", lambda command_line: command_line)
    lines: Any = [evorl.report("a", "b", csv=value, pictures=False) for value in (True, False, "x.csv")]
    assert lines == [["report", "a", "b", f"csv={text}", "pictures=false"] for text in ("", "null", "x.csv")]
    wrong: Any = {"to": True}
    for call in (evorl.report, evorl.render, evorl.pack):
        with raises_naming(ValueError, "to must be text", "got True", "output file"):
            call("run", **wrong)


def test_classes_and_arrays_are_arguments_of_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_api, "command", lambda command_line: command_line)
    command_line: Any = evorl.check_env(Walk, arguments={"part": Narrow, "sizes": np.arange(2), "file": Path("a b")})
    read, _ = read_options(command_line[2:], options.CHECK_ENV, "evorl check-env")
    assert read["arguments"] == {"part": f"{__name__}:Narrow", "sizes": [0, 1], "file": "a b"}


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
        ("cartpole", {"num_envs": 0}, ("num_envs must be", "got 0")),
        (Walk, {"num_envs": 1.5}, ("num_envs must be", "got 1.5")),
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
        ({"discount": np.linspace(0.9, 0.99, 4)}, "{discount: [0.9, 0.93, 0.96, 0.99]}"),
        (np.arange(4).reshape(2, 2), "[[0, 1], [2, 3]]"),
        (np.array([0.1, 0.5], np.float32), "[0.1, 0.5]"),
        (np.array(["a b", "c"]), "['a b', c]"),
        (jnp.array([True, False]), "[True, False]"),
        (np.float32(0.1), "0.1"),
        (np.array(3), "3"),
        (range(3), "[0, 1, 2]"),
    ],
)
def test_values_are_written_as_on_the_command_line(value: object, written: str) -> None:
    assert as_override(value) == written


@pytest.mark.parametrize("value", [{0.9, 0.99}, {"sweep": {0.9}}, [b"text"], 1 + 2j, object(), re])
def test_values_that_no_setting_has_are_rejected(value: object) -> None:
    """A set would end in an error of Hydra's parser, bytes would be a list of numbers, an object its address."""
    with raises_naming(ValueError, "a setting is a number, text, list"):
        as_override(value)
