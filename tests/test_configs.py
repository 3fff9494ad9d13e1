"""Every shipped config file composes, builds, and describes each of its keys."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from hydra import compose
from omegaconf import OmegaConf

from evorl.assembly import complete_config, workflow_class, workflow_from_config
from evorl.cli.composition import initialize_configs
from evorl.cli.settings import commented_yaml
from evorl.envs import available_envs, create_env
from evorl.envs.action_spaces import ActionSpaces
from evorl.envs.libraries import HOST_LIBRARIES, LIBRARIES
from evorl.ops.schedules import value_at
from evorl.ops.trees import named_leaves
from tests.support.config_files import CONFIGS, acts_in, composed, leaves_of, online, said_by
from tests.support.errors import raises_naming
from tests.support.optional_packages import need
from tests.support.physics_shapes import let_bodies_be_still
from tests.text_rules import repeated_lines, setting_lines

# Files of single environments contain only a name: see tests/envs/test_env_configs.py.
FILES = sorted(
    str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml") if path.relative_to(CONFIGS).parts[0] != "env"
)
AGENTS = sorted(
    str(path.relative_to(CONFIGS / "agent").with_suffix("")) for path in (CONFIGS / "agent").rglob("*.yaml")
)
ENVS = sorted(str(path.relative_to(CONFIGS / "env").with_suffix("")) for path in (CONFIGS / "env").rglob("[!_]*.yaml"))
EXPERIMENTS = sorted(
    str(path.relative_to(CONFIGS / "experiment").with_suffix(""))
    for path in (CONFIGS / "experiment").rglob("[!_]*.yaml")
)
# Agents that equal the defaults of their class.
ONE_LINE_AGENTS = set(
    "a2c crossq discor dqn impala ppo pqn pqn_recurrent r2d2 random recurrent_sac reinforce rlpd".split()
    + "sac td3 tqc trpo ec/nsga2 ec/openes".split()
)
# Physics takes seconds to load: these represent all brax environments, whose files must have the same entries.
BUILT_BRAX = {"brax/hopper", "brax/swimmer"}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_class_and_what_its_file_says_are_the_composed_agent(agent: str) -> None:
    """``build_from_config({"env": ...})`` and ``agent=<name>`` build equal workflows, up to settings of the file."""
    env = "acrobot" if acts_in(agent) is ActionSpaces.DISCRETE else "gymnax/PointRobot-misc"
    config = composed(f"agent={agent}", f"env={env}", "~experiment", *online(agent))
    file_config = said_by(f"agent/{agent}")
    cls = workflow_class(file_config.pop("workflow"))
    offline = {"offline": False} if online(agent) else {}
    from_class = cls.build_from_config(
        {"env": OmegaConf.to_container(config.env), "devices": 1, **file_config, **offline}
    )
    from_file = workflow_from_config(config)
    assert jax.tree.structure(from_class) == jax.tree.structure(from_file)
    for (path, leaf), other in zip(named_leaves(from_class).items(), jax.tree.leaves(from_file), strict=True):
        np.testing.assert_array_equal(leaf, other, err_msg=path)
    assert not (file_config and agent in ONE_LINE_AGENTS), "the class has the defaults of its algorithm"


@pytest.mark.parametrize("agent", AGENTS)
def test_a_file_repeats_no_default_of_its_class(agent: str) -> None:
    file_config = OmegaConf.to_container(OmegaConf.load(CONFIGS / "agent" / f"{agent}.yaml"))
    usual = complete_config(workflow_class(file_config["workflow"]), _named_optimizer(file_config))
    repeated = [key for key, value in leaves_of(file_config) if key != "workflow" and _at(usual, key) == value]
    assert [key for key in repeated if key not in ("archive.name", "optimizer.name", "optimizer.pop_size")] == []


def _named_optimizer(file_config: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's name and population size, since its defaults depend on its name."""
    optimizer = file_config.get("optimizer", {})
    needed = {key: optimizer[key] for key in ("name", "pop_size") if key in optimizer}
    return {"optimizer": needed} if needed else {}


def _at(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = config.get(key, ...) if isinstance(config, dict) else ...
    return config


@pytest.mark.parametrize("agent", AGENTS)
def test_every_setting_that_can_be_given_is_explained(agent: str) -> None:
    config = OmegaConf.to_container(composed(f"agent={agent}", "env=pendulum"), resolve=True)
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
    """Hydra in a notebook composes the config of the command line, and every setting is overridden without a plus."""
    with initialize_configs():
        config = compose("config", [*overrides, "devices=1"])
    assert config == composed(*overrides)
    assert {path: OmegaConf.select(config, path) for path in expected} == expected


def test_settings_stand_in_one_file() -> None:
    texts = {str(file): (CONFIGS / file).read_text() for file in FILES}
    repeated = repeated_lines(texts)
    # 0.15 before the settings of runs, which are never repeated, moved from YAML to classes, and before SimbaV2 and
    # FlashSAC, whose categorical values and target entropy are published with the numbers of XQC.
    assert len(repeated) < 0.21 * sum(len(setting_lines(text)) for text in texts.values()), sorted(repeated)
    # Every tuned pair of agent and environment has a separate file, and pairs are added: each is short. The others grew
    # from 752 lines by ten files for families of environments.
    pairs = {f"experiment/{name}.yaml" for name in EXPERIMENTS}
    lines = {file: text.count("\n") for file, text in texts.items()}
    assert sum(lines[file] for file in lines.keys() - pairs) <= 892
    assert sum(lines[file] for file in pairs) <= 7.5 * len(pairs)


def test_a_copied_file_is_noticed() -> None:
    text = "# @package _global_\n# One.\ndefaults:\n  - x\nagent:\n  size: 3 # of it\nrate: 0.1\n"
    assert setting_lines(text) == ["size: 3 # of it", "rate: 0.1"]
    assert repeated_lines({"a": text, "b": "rate: 0.2\n", "c": "other:\n  size: 3 # of another\n"}) == []
    assert repeated_lines({"a": text, "b": "rate: 0.1\n"}) == []  # a coincidence
    assert repeated_lines({"a": text, "b": "x: 1\n" + text}) == [
        "a: size: 3 # of it",
        "a: rate: 0.1",
        "b: size: 3 # of it",
        "b: rate: 0.1",
    ]


@functools.cache
def _abstract_step(*overrides: str) -> Any:
    """Trace a step, once for equal configs of agent, environment and experiment."""
    config = composed(*overrides)
    workflow = workflow_from_config(config)
    metrics, state = jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))
    assert int(config.total_timesteps) >= workflow.timesteps_per_iteration
    return metrics, state


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_an_agent_builds(agent: str, env: str) -> None:
    space = ActionSpaces.BOUNDED_BOXES if env == "pendulum" else ActionSpaces.DISCRETE
    if space not in acts_in(agent):
        refused = {"flash_sac": ("noise_repetition", "Box"), **dict.fromkeys(("simba_v2", "xqc"), ("continuous",))}
        parts = refused.get(agent, ("Box", "act in it: ", "ppo"))
        with raises_naming(ValueError, "Discrete", *parts):
            workflow_from_config(composed(f"agent={agent}", f"env={env}"))
        return
    _, state = _abstract_step(f"agent={agent}", f"env={env}", *online(agent))
    assert "agent_state" in state.get("members", state)


NOT_OF_GYMNAX = ("brax", *available_envs()["brax"], "atari", "remote", "user")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_builds(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    let_bodies_be_still(monkeypatch)  # avoids tracing hundreds of physics equations repeatedly
    agent = max((agent for agent in AGENTS if experiment.startswith(f"{agent}/")), key=len)
    env = experiment.removeprefix(f"{agent}/")
    library = env.partition("/")[0]
    assert env in ENVS or library in HOST_LIBRARIES or not (CONFIGS / "env" / library).is_dir()
    if library == "playground":
        need("mujoco_playground", "playground")
    config = composed(f"agent={agent}", f"env={env}")
    for key, value in leaves_of(said_by(f"experiment/{experiment}")):
        assert OmegaConf.select(config, key) == value, f"{key} is not applied"
    _abstract_step(f"agent={agent}", f"env={env}")


FAMILY_FILES = sorted(
    path.relative_to(CONFIGS / "experiment").with_suffix("").as_posix()
    for path in (CONFIGS / "experiment").rglob("*/_*.yaml")
)
# An environment of each family for which no agent has a file.
UNTUNED = {
    "brax": "humanoid",
    "minatar": "gymnax/Seaquest-MinAtar",
    "atari": "atari/pong",
    "classic_control": "gymnax/Acrobot-v1",
    "mountain_car": "gymnasium/MountainCar-v0",
    "mountain_car_continuous": "gymnasium/MountainCarContinuous-v0",
    "dm_control": "playground/WalkerStand",
    "mujoco": "host/ant",
    "box2d": "gymnasium/LunarLander-v3",
}


@pytest.mark.parametrize("file", FAMILY_FILES)
def test_settings_of_a_family_are_those_of_its_environments(file: str) -> None:
    agent, _, family = file.rpartition("/_")
    config = composed(f"agent={agent}", f"env={UNTUNED[family]}")
    settings = list(leaves_of(said_by(f"experiment/{file}")))
    assert settings
    for key, value in settings:
        assert OmegaConf.select(config, key) == value, f"{key} is not applied"
    assert config != composed(f"agent={agent}", f"env={UNTUNED[family]}", "~experiment")


def test_a_value_over_the_training_is_a_number_or_a_schedule() -> None:
    def ends(*overrides: str) -> tuple[float, float]:
        optimizer = workflow_from_config(composed(*overrides)).optimizer
        return tuple(float(value_at(optimizer.learning_rate, progress)) for progress in (0.0, 1.0))

    assert ends() == pytest.approx((2.5e-3, 0.0))
    assert ends("optimizer.learning_rate=1e-3") == (1e-3, 1e-3)
    assert ends("optimizer.learning_rate.start=1e-3") == pytest.approx((1e-3, 0.0))
    assert ends("optimizer.learning_rate={start: 1e-3, end: 1e-4}") == pytest.approx((1e-3, 1e-4))
    assert ends("agent=trpo", "optimizer.learning_rate={start: 1, end: 0}") == (1.0, 0.0)
    assert ends("agent=trpo", "+optimizer.learning_rate={start: 1, end: 0, share: 0.5}") == (1.0, 0.0)


@pytest.mark.parametrize("env", [env for env in ENVS if env.split("/")[0] not in NOT_OF_GYMNAX])
def test_an_environment_of_gymnax_builds(env: str) -> None:
    config = composed("agent=random", f"env={env}").env
    vector_env = create_env(config, parallel=2)
    state = jax.eval_shape(vector_env.reset, jax.random.key(0))
    assert state.done.shape == (2,)


@pytest.mark.parametrize("name", available_envs()["brax"])
def test_an_environment_of_brax_is_described(name: str) -> None:
    config = composed("agent=random", f"env=brax/{name}").env
    assert config == composed("agent=random", f"env={name}").env
    assert (config.library, config.name) == ("brax", name)
    assert set(config) == set(composed("agent=random", "env=brax/hopper").env)
    if f"brax/{name}" in BUILT_BRAX:
        state = jax.eval_shape(create_env(config, parallel=2).reset, jax.random.key(0))
        assert state.done.shape == (2,)


def test_every_environment_of_a_library_with_a_folder_has_a_file() -> None:
    folders = [library for library in LIBRARIES if (CONFIGS / "env" / library).is_dir()]
    assert {"brax", "gymnax", "goal"} == set(folders)
    named = {f"{library}/{name}" for library in folders for name in available_envs()[library]}
    assert named == {env for env in ENVS if "/" in env and not env.startswith("atari/")}


@pytest.mark.parametrize("file", FILES)
def test_every_key_is_explained(file: str) -> None:
    """Every key has a trailing comment; files of differences and of short names are described in their first line."""
    text = (CONFIGS / file).read_text()
    if file not in ("config.yaml", "experiment/_families.yaml"):
        assert text.startswith("# @package _global_\n# ")
    else:
        assert text.startswith("# ")
    if file.startswith("experiment/"):
        return
    body = re.sub(r"^(hydra|defaults):\n(?:[ ].*\n?)*", "", text, flags=re.MULTILINE)
    keys = re.findall(r"^ *[\w.]+:.*$", body, re.MULTILINE)
    bare = [line.strip() for line in keys if "#" not in line and not re.fullmatch(r" *\w+:( &\w+)? *", line)]
    assert not bare, f"no comment behind {bare}"
