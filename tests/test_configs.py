"""Every config file that is shipped composes, builds, and explains each of its keys."""

from __future__ import annotations

import re
import typing
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from evorl.agent import Agent
from evorl.algorithms.pbt import PBTWorkflow
from evorl.cli.composition import AGENT_PARTS, compose_config, config_folder
from evorl.cli.settings import commented_yaml
from evorl.cli.stored_run import build_workflow
from evorl.config.defaults import merged
from evorl.config.nodes import fields_from_config, plain
from evorl.envs import available_envs, create_env
from evorl.envs.factory import HOST_LIBRARIES, LIBRARIES
from evorl.envs.space import ActionSpaces
from evorl.ops.schedules import value_at
from evorl.ops.trees import named_leaves
from evorl.workflows.assembly import complete_config, workflow_class
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow
from tests.support.optional_packages import need
from tests.text_rules import repeated_lines, setting_lines

CONFIGS = config_folder()
# Those of single environments hold a name each: see tests/envs/test_env_configs.py.
FILES = sorted(
    str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml") if path.relative_to(CONFIGS).parts[0] != "env"
)
AGENTS = sorted(
    str(path.relative_to(CONFIGS / "agent").with_suffix("")) for path in (CONFIGS / "agent").rglob("*.yaml")
)
SEARCHED = sorted(
    str(path.relative_to(CONFIGS / "search_space").with_suffix(""))
    for path in (CONFIGS / "search_space").rglob("[!_]*.yaml")
)
ENVS = sorted(str(path.relative_to(CONFIGS / "env").with_suffix("")) for path in (CONFIGS / "env").rglob("[!_]*.yaml"))
EXPERIMENTS = sorted(
    str(path.relative_to(CONFIGS / "experiment").with_suffix(""))
    for path in (CONFIGS / "experiment").rglob("[!_]*.yaml")
)
# Those that are what their class is, and no variant of it.
ONE_LINE_AGENTS = set(
    "a2c crossq discor dqn impala ppo pqn r2d2 random reinforce sac td3 tqc trpo ec/nsga2 ec/openes".split()
)
# Physics takes seconds to load: these stand for all brax environments, whose files must say the same.
BUILT_BRAX = {"brax/hopper", "brax/swimmer"}


def _composed(*overrides: str) -> DictConfig:
    return compose_config(["devices=1", *overrides])


def _said(file: str, part: str = "") -> dict[str, Any]:
    """What a config file says, and before it those of its defaults list, without the values of any class.

    What is read for a part, such as ``inner``, stands below it.
    """
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{file}.yaml"))
    said: dict[str, Any] = {}
    own = merged({}, {key: value for key, value in config.items() if key != "defaults"})
    for default in config.get("defaults", ["_self_"]):
        if default == "_self_":
            said = merged(said, own)
            continue
        if isinstance(default, str):
            file, _, package = default.removeprefix("/").partition("@")
            below = package.removeprefix("_global_").removeprefix("_here_").removeprefix(".")
            said = merged(said, {below: _said(file)} if below else _said(file))
            continue
        ((group, name),) = default.items()
        group = group.removeprefix("optional ").removeprefix("/")
        if group in AGENT_PARTS:
            said = merged(said, {group: _said(f"agent/{name}")})
        elif not name.startswith("${inner}/"):  # an experiment of the pair
            said = merged(said, _said(f"{group}/{name.replace('${inner}', 'ppo')}"))
    return said


def _acts_in(agent: str) -> ActionSpaces:
    """The action spaces that the agent of a file, or of its learner, acts in."""
    config = _said(f"agent/{agent}")
    config = config.get("learner", config)
    return typing.get_type_hints(workflow_class(config["workflow"])).get("agent", Agent).acts_in


@pytest.mark.parametrize("agent", AGENTS)
def test_a_class_and_what_its_file_says_are_the_composed_agent(agent: str) -> None:
    """``build_from_config({"env": ...})`` and ``agent=<name>`` build equal workflows, up to what the file says."""
    env = "acrobot" if _acts_in(agent) is ActionSpaces.DISCRETE else "gymnax/PointRobot-misc"  # without experiments
    composed = _composed(f"agent={agent}", f"env={env}", *_online(agent))
    said = _said(f"agent/{agent}")
    cls = workflow_class(said.pop("workflow"))
    online = {"offline": False} if _online(agent) else {}
    from_class = cls.build_from_config({"env": OmegaConf.to_container(composed.env), "devices": 1, **said, **online})
    from_file = build_workflow(composed)
    assert jax.tree.structure(from_class) == jax.tree.structure(from_file)
    for (path, leaf), other in zip(named_leaves(from_class).items(), jax.tree.leaves(from_file), strict=True):
        np.testing.assert_array_equal(leaf, other, err_msg=path)
    assert not (said and agent in ONE_LINE_AGENTS), "the class has the defaults of its algorithm"


@pytest.mark.parametrize("agent", AGENTS)
def test_a_file_repeats_no_default_of_its_class(agent: str) -> None:
    said = OmegaConf.to_container(OmegaConf.load(CONFIGS / "agent" / f"{agent}.yaml"))
    usual = complete_config(workflow_class(said["workflow"]), _named_optimizer(said))
    repeated = [key for key, value in _leaves(said) if key != "workflow" and _at(usual, key) == value]
    assert [key for key in repeated if key not in ("optimizer.name", "optimizer.pop_size")] == []


def _named_optimizer(said: dict[str, Any]) -> dict[str, Any]:
    """An optimizer has the defaults of the search that it names, and no population of its own."""
    optimizer = said.get("optimizer", {})
    needed = {key: optimizer[key] for key in ("name", "pop_size") if key in optimizer}
    return {"optimizer": needed} if needed else {}


def _at(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = config.get(key, ...) if isinstance(config, dict) else ...
    return config


@pytest.mark.parametrize("agent", AGENTS)
def test_every_setting_that_can_be_given_is_explained(agent: str) -> None:
    config = OmegaConf.to_container(_composed(f"agent={agent}", "env=pendulum"), resolve=True)
    lines = commented_yaml(config, CONFIGS).splitlines()
    bare = [line for line in lines if "  # " not in line and re.match(r" *(low|high|scale):", line) is None]
    assert [line for line in bare if not re.fullmatch(r" *[\w.]+:", line)] == []
    assert yaml.safe_load("\n".join(lines)).keys() == config.keys()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["agent=ppo", "gae_lambda=0.9", "agent.clip_epsilon=0.1", "optimizer.beta1=0.8", "optimizer=radam"],
            {"gae_lambda": 0.9, "agent.clip_epsilon": 0.1, "optimizer.beta1": 0.8, "optimizer.name": "radam"},
        ),
        (
            ["agent=meta/pbt", "inner=sac", "inner.tau=0.1", "inner.actor_optimizer=sgd"],
            {
                "inner.workflow": "evorl.algorithms.sac.SACWorkflow",
                "inner.tau": 0.1,
                "inner.actor_optimizer.name": "sgd",
            },
        ),
        (
            ["agent=erl/erl", "learner=sac", "evolution=es", "optimizer.mirror_sampling=true"],
            {"learner.agent.temperature": 1.0, "optimizer.name": "vanilla_es", "optimizer.mirror_sampling": True},
        ),
        (
            ["agent=qd/map_elites", "archive=grid", "archive.bins=[4, 4]"],
            {"archive.name": "grid", "archive.bins": [4, 4], "archive.low": [-1.0, -1.0]},
        ),
        (
            ["agent=qd/map_elites", "archive=centroid", "archive.num_centroids=8"],
            {"archive.name": "centroid", "archive.bins": None, "archive.num_centroids": 8, "archive.high": [1.0, 1.0]},
        ),
    ],
)
def test_hydra_composes_the_same_everywhere(overrides: list[str], expected: dict[str, Any]) -> None:
    """A notebook that calls Hydra has the config of the command line; every setting is given without a plus."""
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = compose("config", [*overrides, "devices=1"])
    assert config == _composed(*overrides)
    assert {path: OmegaConf.select(config, path) for path in expected} == expected


def test_settings_stand_in_one_file() -> None:
    texts = {str(file): (CONFIGS / file).read_text() for file in FILES}
    repeated = repeated_lines(texts)
    assert len(repeated) < 0.15 * sum(len(setting_lines(text)) for text in texts.values()), sorted(repeated)
    assert sum(text.count("\n") for text in texts.values()) <= 1000


def test_a_copied_file_is_noticed() -> None:
    text = "# @package _global_\n# One.\ndefaults:\n  - x\nagent:\n  size: 3 # of it\nrate: 0.1\n"
    assert setting_lines(text) == ["size: 3 # of it", "rate: 0.1"]
    assert repeated_lines({"a": text, "b": "rate: 0.2\n", "c": "other:\n  size: 3 # of another\n"}) == []
    assert repeated_lines({"a": text, "b": "rate: 0.1\n"}) == []  # by chance
    assert repeated_lines({"a": text, "b": "x: 1\n" + text}) == [
        "a: size: 3 # of it",
        "a: rate: 0.1",
        "b: size: 3 # of it",
        "b: rate: 0.1",
    ]


def _online(agent: str) -> list[str]:
    """What makes an agent that learns from recorded transitions one of its environment."""
    usual = complete_config(workflow_class(_said(f"agent/{agent}")["workflow"]), {})
    return ["offline=false"] if usual.get("offline") else []


def _abstract_step(config: DictConfig) -> Any:
    workflow = build_workflow(config)
    metrics, state = jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))
    assert int(config.total_timesteps) >= workflow.timesteps_per_iteration
    return metrics, state


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_an_agent_builds(agent: str, env: str) -> None:
    space = ActionSpaces.BOUNDED_BOXES if env == "pendulum" else ActionSpaces.DISCRETE
    if space not in _acts_in(agent):
        with pytest.raises(ValueError, match=r"acts in (Discrete|flat).*In it act: "):
            build_workflow(_composed(f"agent={agent}", f"env={env}"))
        return
    _, state = _abstract_step(_composed(f"agent={agent}", f"env={env}", *_online(agent)))
    assert "agent_state" in state.get("members", state)


@pytest.mark.parametrize("agent", SEARCHED)
def test_a_population_of_any_agent_builds(agent: str) -> None:
    env = "cartpole" if _acts_in(agent) is ActionSpaces.DISCRETE else "pendulum"
    config = _composed("agent=meta/pbt", f"inner={agent}", f"env={env}")
    workflow = build_workflow(config)
    assert isinstance(workflow, PBTWorkflow)
    assert workflow.inner.env.num_envs == OmegaConf.select(config, "inner.num_envs", default=workflow.env.num_envs)
    assert len(workflow.search_space.paths) >= 2
    assert int(config.total_timesteps) >= 20 * workflow.timesteps_per_iteration
    if env == "pendulum":
        tuned = CONFIGS / "experiment" / agent / f"{env}.yaml"
        for key, value in _leaves(_said(f"experiment/{agent}/{env}")) if tuned.exists() else ():
            of_the_run = key.partition(".")[0] == "env"
            if not key.startswith(workflow.search_space.paths):
                assert OmegaConf.select(config, key if of_the_run else f"inner.{key}") == value


def test_the_environment_as_it_is_tuned_for_the_members_is_that_of_the_run() -> None:
    population = ("agent=meta/pbt", "inner=ppo", "env=mountain_car_continuous")
    config = _composed(*population)
    assert (config.env.action_repeat, config.env.reward_scale) == (8, 0.1)
    assert "env" not in config.inner
    assert build_workflow(config).inner.env.num_envs == config.inner.num_envs == 8
    assert _composed(*population, "env.action_repeat=2").env.action_repeat == 2
    assert _composed("agent=meta/pbt", "inner=ppo").env.action_repeat == 1


def test_a_population_of_an_agent_without_a_search_space() -> None:
    with pytest.raises(ValueError, match="search_space is empty"):
        build_workflow(_composed("agent=meta/pbt", "inner=reinforce"))
    space = "+search_space.discount={low: 0.9, high: 0.99}"
    workflow = build_workflow(_composed("agent=meta/pbt", "inner=reinforce", space))
    assert workflow.search_space.paths == ("discount",)


@pytest.mark.parametrize("agent", ["erl/erl", "erl/cemrl"])
@pytest.mark.parametrize("evolution", ["ga", "es", "eda"])
@pytest.mark.parametrize("learner", ["td3", "sac", "ddpg"])
def test_any_evolution_guides_any_learner(agent: str, evolution: str, learner: str) -> None:
    config = _composed(f"agent={agent}", f"evolution={evolution}", f"learner={learner}", "env=pendulum")
    workflow = build_workflow(config)
    assert isinstance(workflow, EvolutionGuidedWorkflow)
    assert workflow.learner.learning_starts == 10_000
    assert workflow.optimizer.pop_size == 10
    expected = {"td3": "TD3Workflow", "sac": "SACWorkflow", "ddpg": "TD3Workflow"}[learner]
    assert type(workflow.learner).__name__ == expected


NOT_OF_GYMNAX = ("brax", *available_envs()["brax"], "atari", "user")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_builds(experiment: str) -> None:
    agent = max((agent for agent in AGENTS if experiment.startswith(f"{agent}/")), key=len)
    env = experiment.removeprefix(f"{agent}/")
    library = env.partition("/")[0]
    assert env in ENVS or library in HOST_LIBRARIES or not (CONFIGS / "env" / library).is_dir()
    if library == "playground":
        need("mujoco_playground", "playground")
    config = _composed(f"agent={agent}", f"env={env}")
    for key, value in _leaves(_said(f"experiment/{experiment}")):
        assert OmegaConf.select(config, key) == value, f"{key} is not applied"
    _abstract_step(config)


def test_a_value_over_the_training_is_a_number_or_a_schedule() -> None:
    def ends(*overrides: str) -> tuple[float, float]:
        optimizer = build_workflow(_composed(*overrides)).optimizer
        return tuple(float(value_at(optimizer.learning_rate, progress)) for progress in (0.0, 1.0))

    assert ends() == pytest.approx((2.5e-3, 0.0))
    assert ends("optimizer.learning_rate=1e-3") == (1e-3, 1e-3)
    assert ends("optimizer.learning_rate.start=1e-3") == pytest.approx((1e-3, 0.0))
    assert ends("optimizer.learning_rate={start: 1e-3, end: 1e-4}") == pytest.approx((1e-3, 1e-4))
    assert ends("agent=trpo", "optimizer.learning_rate={start: 1, end: 0}") == (1.0, 0.0)
    assert ends("agent=trpo", "+optimizer.learning_rate={start: 1, end: 0, share: 0.5}") == (1.0, 0.0)


@pytest.mark.parametrize("env", [env for env in ENVS if env.split("/")[0] not in NOT_OF_GYMNAX])
def test_an_environment_of_gymnax_builds(env: str) -> None:
    config = _composed("agent=random", f"env={env}").env
    vector_env = create_env(config, parallel=2)
    state = jax.eval_shape(vector_env.reset, jax.random.key(0))
    assert state.done.shape == (2,)


@pytest.mark.parametrize("name", available_envs()["brax"])
def test_an_environment_of_brax_is_described(name: str) -> None:
    config = _composed("agent=random", f"env=brax/{name}").env
    assert config == _composed("agent=random", f"env={name}").env
    assert (config.library, config.name) == ("brax", name)
    assert set(config) == set(_composed("agent=random", "env=brax/hopper").env)
    if f"brax/{name}" in BUILT_BRAX:
        state = jax.eval_shape(create_env(config, parallel=2).reset, jax.random.key(0))
        assert state.done.shape == (2,)


@pytest.mark.parametrize(("overrides", "divisor"), [([], 5.0), (["optimizer.variance_divisor=1"], 1.0)])
def test_the_variances_of_cem_rl_are_divided_by_the_number_of_elites(overrides: list[str], divisor: float) -> None:
    config = plain(_composed("agent=erl/cemrl", "env=pendulum", *overrides).optimizer)
    optimizer = fields_from_config(EvolutionGuidedWorkflow, {"optimizer": config}, "")["optimizer"]
    assert float(optimizer.variance_divisor) == divisor
    assert optimizer.pop_size // 2 == 5


def test_every_environment_of_a_library_with_a_folder_has_a_file() -> None:
    folders = [library for library in LIBRARIES if (CONFIGS / "env" / library).is_dir()]
    assert {"brax", "gymnax", "goal"} == set(folders)
    named = {f"{library}/{name}" for library in folders for name in available_envs()[library]}
    assert named == {env for env in ENVS if "/" in env and not env.startswith("atari/")}


@pytest.mark.parametrize("file", FILES)
def test_every_key_is_explained(file: str) -> None:
    """By a comment behind it; files of differences and of short names are explained by their first line."""
    text = (CONFIGS / file).read_text()
    if file != "config.yaml":
        assert text.startswith("# @package _global_\n# ")
    else:
        assert text.startswith("# ")
    if file.startswith("experiment/"):
        return
    body = re.sub(r"^(hydra|defaults):\n(?:[ ].*\n?)*", "", text, flags=re.MULTILINE)
    keys = re.findall(r"^ *[\w.]+:.*$", body, re.MULTILINE)
    bare = [line.strip() for line in keys if "#" not in line and not re.fullmatch(r" *\w+:( &\w+)? *", line)]
    assert not bare, f"no comment behind {bare}"


def _leaves(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    leaves = []
    for key, value in config.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, value))
    return leaves
