"""Hydra reads the config tree through one source that completes it, for everything that composes configs."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import Any, cast

import hypothesis
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.version import getbase
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from evorl.assembly import workflow_from_config
from evorl.cli import python_api, training
from evorl.cli.composition import compose_config, initialize_configs
from evorl.cli.python_api import as_overrides
from evorl.cli.run_command import compose_quietly, with_hydra
from evorl.cli.run_names import hydra_settings
from evorl.ec.evo_optimizer import EvoOptimizer
from evorl.ec.optimizers import OpenES
from tests.support.errors import raises_naming


def test_a_file_that_names_a_class_has_all_its_settings() -> None:
    config = compose_config(["agent=ppo", "env=cartpole"])
    assert config.gae_lambda == 0.95
    assert "updates_per_iteration" not in config


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_name_stands_for_a_mapping_that_has_it(name: str) -> None:
    short, long = (compose_config(["agent=ppo", f"{key}={name}"]) for key in ("optimizer", "optimizer.name"))
    assert short == long
    assert short.optimizer.name == name


@pytest.mark.parametrize("words", [["{start: 1, end: 0.1, steps: 200}"], [".start=1", ".end=0.1", ".steps=200"]])
def test_a_schedule_may_be_given_by_steps_where_there_is_one_by_share(words: list[str]) -> None:
    given = [f"agent.epsilon{word}" if word[0] == "." else f"agent.epsilon={word}" for word in words]
    config = compose_config(["agent=dqn", "env=cartpole", "total_timesteps=1000", *given])
    epsilon = workflow_from_config(config).agent.epsilon  # neither the class nor the rate's file defines steps
    rate = compose_config(["agent=ppo", "env=cartpole", "optimizer.learning_rate.share=0.5"]).optimizer.learning_rate
    assert rate.share == 0.5
    assert (epsilon.start, epsilon.end, epsilon.share) == (1.0, 0.1, 0.2)
    with raises_naming(ValueError, "key of agent.epsilon", "'shar'", "'share'"):
        workflow_from_config(compose_config(["agent=dqn", "env=cartpole", "agent.epsilon.shar=7"]))


def test_a_part_that_is_an_agent_is_a_file_of_the_agents() -> None:
    config = compose_config(["agent=erl/cemrl", "learner=sac", "learner.tau=0.1", "env=pendulum"])
    assert config.learner.workflow.endswith("SACWorkflow")
    assert config.learner.tau == 0.1
    assert "total_timesteps" not in config.learner  # the run's value is used
    with raises_naming(ConfigCompositionException, "learner/sacc"):
        compose_config(["agent=erl/cemrl", "learner=sacc"])


def test_an_optimizer_has_the_settings_of_the_search_that_it_names() -> None:
    config = compose_config(["agent=ec/openes", "env=cartpole"])
    assert config.optimizer.mirror_sampling is OpenES(pop_size=2).mirror_sampling


def test_an_environment_has_the_same_settings_by_each_of_its_names() -> None:
    short, long = compose_config(["env=hopper"]), compose_config(["env=brax/hopper"])
    assert short == long
    assert short.total_timesteps == 3_000_000
    assert compose_config(["agent=dqn", "env=gymnax/CartPole-v1"]).n_step == 3
    inner = compose_config(["agent=meta/pbt", "inner=ppo", "env=brax/hopper"]).inner
    assert inner.agent.entropy_coefficient == 0.001


@pytest.mark.parametrize(
    "options",
    ["optimizer.options={momentum: 0.9}", "optimizer.options.momentum=0.9", "optimizer={options: {momentum: 0.9}}"],
)
@pytest.mark.parametrize("agent", ["agent=ppo", "agent=meta/pbt inner=ppo", "agent=td3"])
def test_arguments_of_an_optimizer_need_no_plus(agent: str, options: str) -> None:
    """The guide "Command line" sets ``optimizer.options`` in this way."""
    part = {"agent=ppo": "", "agent=td3": "actor_"}.get(agent, "inner.")
    config = compose_config([*agent.split(), f"{part}{options}"])
    assert OmegaConf.select(config, f"{part}optimizer.options") == {"momentum": 0.9}


def test_a_folder_of_ones_own_is_completed_likewise(tmp_path: Path) -> None:
    """Configs in a custom folder (``--config-dir``) are completed like shipped ones."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/mine.yaml").write_text(
        "# @package _global_\nworkflow: evorl.algorithms.ppo.PPOWorkflow\nnum_epochs: 7\n", encoding="utf-8"
    )
    with initialize_configs():
        overrides = [f"hydra.searchpath=[file://{tmp_path}]", "agent=mine", "env=cartpole"]
        config = OmegaConf.to_container(compose("config", [*overrides, "gae_lambda=0.5"]))
    assert (config["num_epochs"], config["gae_lambda"]) == (7, 0.5)
    assert config["agent"]["clip_epsilon"] == 0.2


def test_a_program_with_hydra_of_its_own_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer/sgd.yaml").write_text("momentum: 3\n", encoding="utf-8")
    (tmp_path / "config.yaml").write_text("x: 1\n", encoding="utf-8")
    with initialize_config_dir(version_base="1.2", config_dir=str(tmp_path)):
        assert compose_config(["agent=ppo", "env=cartpole"]).num_epochs == 4
        assert compose("config").x == 1
        assert str(getbase()) == "1.2"
    with initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
        assert compose("config", ["+optimizer=sgd"]).optimizer.momentum == 3  # not completed as a file of evorl


class OwnSearch(EvoOptimizer):
    """Attributes:
    step_size: of the mean.
    initial_std: of samples.
    """

    pop_size: int = 24
    step_size: float = 0.5
    initial_std: float = 0.2


def own_gradient_optimizer(learning_rate):
    """Return something."""
    return learning_rate


@pytest.mark.parametrize("agent", ["ec/openes", "ec/cmaes", "ec/ga", "ec/vanilla_es"])
@pytest.mark.parametrize("name", [f"{__name__}:OwnSearch", "cmaes", "evosax/SNES"])
def test_a_search_brings_its_own_settings_and_none_of_another(agent: str, name: str) -> None:
    """An optimizer chosen by name has only its own settings, without settings of the agent's default optimizer."""
    config = compose_config([f"agent={agent}", f"optimizer={name}", "optimizer.initial_std=0.7", "env=acrobot"])
    optimizer = dict(config.optimizer)
    assert (optimizer.pop("name"), optimizer["initial_std"]) == (name, 0.7)
    fields = {
        "cmaes": {"pop_size", "num_elites", "initial_std", "positive_weights"},
        "evosax/SNES": {"pop_size", "initial_std", "num_populations", "params"},
    }.get(name, {"pop_size", "step_size", "initial_std"})
    assert set(optimizer) == fields
    if "OwnSearch" in name:
        assert optimizer["pop_size"] == 24


def test_the_search_of_an_agent_has_the_settings_of_its_file() -> None:
    optimizer = compose_config(["agent=ec/ga", "env=acrobot"]).optimizer
    assert (optimizer.pop_size, optimizer.num_elites, optimizer.crossover.kind) == (128, 8, "units")
    assert compose_config(["agent=ec/ga", "optimizer=ga", "env=acrobot"]).optimizer == optimizer


def test_a_part_of_an_agent_has_a_search_of_ones_own() -> None:
    overrides = ["agent=erl/erl", "evolution=ga", f"optimizer={__name__}:OwnSearch"]
    assert set(compose_config(overrides).optimizer) == {"name", "pop_size", "step_size", "initial_std"}


def test_a_gradient_optimizer_is_its_name_alone() -> None:
    usual = compose_config(["agent=ppo"]).optimizer
    for name in ("sgd", f"{__name__}:own_gradient_optimizer"):
        assert compose_config(["agent=ppo", f"optimizer={name}"]).optimizer == {**usual, "name": name}


def test_a_search_that_does_not_exist_is_refused() -> None:
    with raises_naming(ValueError, "'no_such_module'", "PYTHONPATH"):
        compose_config(["agent=ec/openes", "optimizer=no_such_module:X"])
    with raises_naming(ValueError, "optimizer.name 'cma_es'", "'cmaes'"):  # not optimizer.pop_size
        compose_config(["agent=ec/openes", "optimizer=cma_es", "optimizer.pop_size=8"])


@pytest.mark.parametrize(
    ("settings", "overrides"),
    [
        ({"num_seeds": 2}, ["num_seeds=2"]),
        ({"archive": {"num_centroids": 64, "name": "centroid"}}, ["archive=centroid", "archive.num_centroids=64"]),
        ({"learner.actor_optimizer": {"name": "sgd"}}, ["learner.actor_optimizer=sgd"]),
        ({"optimizer": {"learning_rate": 0.1}}, ["optimizer={learning_rate: 0.1}"]),
        ({"archive": {"name": OwnSearch, "low": [0]}}, [f"archive={__name__}:OwnSearch", "archive.low=[0]"]),
        ({"env": {"name": "x", "library": "y"}}, ["env={name: x, library: y}"]),
    ],
)
def test_a_mapping_with_a_name_chooses_an_archive_or_optimizer(settings: dict, overrides: list[str]) -> None:
    assert as_overrides(settings) == overrides


def test_a_mapping_may_have_settings_that_only_its_kind_has() -> None:
    mapping = {"name": "centroid", "num_centroids": 64, "low": [0.0], "high": [2.0]}
    archive = compose_config(["agent=qd/map_elites", *as_overrides({"archive": mapping})]).archive
    assert {**archive, **mapping} == archive
    assert "bins" not in archive
    sgd = {"name": "sgd", "options": {"momentum": 0.9}}
    optimizer = compose_config(["agent=ppo", *as_overrides({"optimizer": sgd})]).optimizer
    assert {**optimizer, **sgd} == optimizer


AGENTS = ("ppo", "dqn", "sac", "ec/openes", "qd/map_elites")


@hypothesis.settings(max_examples=4, deadline=None)
@hypothesis.given(chosen=st.lists(st.sampled_from(AGENTS), min_size=2, max_size=4), resumes=st.booleans())
def test_threads_compose_their_own_configs(chosen: list[str], resumes: bool) -> None:
    """Hydra has one state per process, which concurrent trainings replaced: they failed, or had names of another."""
    together = threading.Barrier(len(chosen))

    def composed(number: int) -> tuple[Any, ...]:
        arguments = [f"agent={chosen[number]}", "env=cartpole", f"seed={number}"]
        together.wait(timeout=60)
        with python_api._composed(arguments) as spec:
            together.wait(timeout=60)
            start = training._start(spec, None, (), None)
            stored = training._start(spec, cast(Any, "folder"), (), None) if resumes else None
            return (
                start.names["agent"],
                list(start.overrides),
                start.place.root.name,
                spec.seed,
                stored and stored.names,
            )

    with concurrent.futures.ThreadPoolExecutor(len(chosen)) as pool:
        results = list(pool.map(composed, range(len(chosen))))
    for number, (agent, result) in enumerate(zip(chosen, results, strict=True)):
        arguments = [f"agent={agent}", "env=cartpole", f"seed={number}"]
        folder = f"{agent.replace('/', '-')}-cartpole"
        assert result == (agent, arguments, folder, number, {} if resumes else None)
    assert not HydraConfig.initialized()


def test_other_threads_compose_while_a_job_of_hydra_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["evorl"])
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    workflows: list[str] = []

    def compose_another() -> None:
        workflows.append(compose_config(["agent=sac", "env=pendulum"]).workflow)

    def job(config: DictConfig) -> None:
        thread = threading.Thread(target=compose_another, daemon=True)
        thread.start()
        thread.join(timeout=60)
        workflows.append(config.workflow)

    with_hydra(["agent=ppo", "env=cartpole", f"hydra.run.dir={tmp_path}"], job)
    assert [name.rpartition(".")[2] for name in workflows] == ["SACWorkflow", "PPOWorkflow"]


def test_a_sweep_waits_while_another_thread_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra has one state per process, which the two threads restored in the wrong order."""
    monkeypatch.setattr("sys.argv", ["evorl"])
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    begun, chosen, before = threading.Event(), [], GlobalHydra.instance().hydra

    def noticed(*arguments: Any) -> None:
        begun.set()
        with_hydra(*arguments)

    monkeypatch.setattr("evorl.cli.run_command.with_hydra", noticed)

    def task(spec: Any) -> None:
        chosen.extend([spec.workflow["workflow"], hydra_settings().runtime.choices.agent])
        assert compose_config(["agent=sac"]).workflow != chosen[0]
        assert hydra_settings().runtime.choices.agent == "ppo"
        chosen.append("end")

    arguments = ["agent=ppo", "env=cartpole", f"hydra.run.dir={tmp_path}"]
    thread = threading.Thread(target=compose_quietly, args=(arguments, task), daemon=True)
    with initialize_configs():
        thread.start()
        assert not begun.wait(0.5)
        assert compose("config", overrides=["agent=sac"]).workflow.endswith("SACWorkflow")
    thread.join(timeout=60)
    assert [chosen[0].rpartition(".")[2], *chosen[1:]] == ["PPOWorkflow", "ppo", "end"]
    assert GlobalHydra.instance().hydra is before


def test_settings_may_refer_to_the_settings_of_hydra() -> None:
    arguments = ["agent=ppo", "env=cartpole", "title=${hydra:runtime.choices.agent}-mine"]
    with python_api._composed(arguments) as spec:
        assert spec.title == "ppo-mine"


def test_a_kind_on_the_command_line_precedes_the_names_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["evorl"])
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text("# @package _global_\noptimizer: {name: sgd, epsilon: 0.5}\n")
    arguments = [f"hydra.searchpath=[file://{tmp_path}]", "agent=ppo", "experiment=mine", "optimizer=adamw"]
    specs: list[Any] = []
    compose_quietly(arguments, specs.append)
    with python_api._composed(arguments) as spec:
        specs.append(spec)
    assert [(spec.workflow["optimizer"]["name"], spec.workflow["optimizer"]["epsilon"]) for spec in specs] == [
        ("adamw", 0.5)
    ] * 2


@pytest.mark.parametrize(("agent", "name"), [("qd/map_elites", "archive=centroid"), ("ec/openes", "optimizer=ars")])
def test_the_long_form_of_a_kind_has_its_settings(agent: str, name: str) -> None:
    configs = []
    for form in (name, name.replace("=", ".name=")):
        with python_api._composed([f"agent={agent}", "env=pendulum", form]) as spec:
            configs.append(spec.workflow)
    assert configs[0] == configs[1]
