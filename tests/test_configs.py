"""Every config file that is shipped composes, builds, and explains each of its keys."""

from __future__ import annotations

import re
from typing import Any

import jax
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from evorl.algorithms.pbt import PBTWorkflow
from evorl.cli import build_workflow, config_folder
from evorl.envs import available_envs, create_env
from evorl.workflows.evolution_guided import EvolutionGuidedWorkflow

CONFIGS = config_folder()
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))
AGENTS = sorted(
    str(path.relative_to(CONFIGS / "agent").with_suffix("")) for path in (CONFIGS / "agent").rglob("*.yaml")
)
SEARCHED = sorted(
    str(path.relative_to(CONFIGS / "search_space").with_suffix(""))
    for path in (CONFIGS / "search_space").rglob("*.yaml")
)
ENVS = sorted(str(path.relative_to(CONFIGS / "env").with_suffix("")) for path in (CONFIGS / "env").rglob("*.yaml"))
EXPERIMENTS = sorted(
    str(path.relative_to(CONFIGS / "experiment").with_suffix("")) for path in (CONFIGS / "experiment").rglob("*.yaml")
)
DISCRETE_ONLY = {"dqn", "pqn", "r2d2", "rainbow"}
CONTINUOUS_ONLY = {"crossq", "ddpg", "erl/cemrl", "erl/erl", "fast_td3", "qd/pga_me", "td3", "tqc"}
# Physics takes seconds to load: these stand for all brax environments, whose files must say the same.
BUILT_BRAX = {"brax/hopper", "brax/swimmer"}


def _composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", ["devices=1", *overrides])


def _abstract_step(config: DictConfig) -> Any:
    workflow = build_workflow(config)
    metrics, state = jax.eval_shape(workflow.pure_step, jax.eval_shape(workflow.setup, jax.random.key(0)))
    assert int(config.total_timesteps) >= workflow.timesteps_per_iteration
    return metrics, state


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_an_agent_builds(agent: str, env: str) -> None:
    if env == "pendulum" and agent in DISCRETE_ONLY:
        with pytest.raises(ValueError, match="acts in Discrete spaces"):
            build_workflow(_composed(f"agent={agent}", f"env={env}"))
        return
    if env == "cartpole" and agent in CONTINUOUS_ONLY:
        with pytest.raises(ValueError, match=r"acts? in flat"):
            build_workflow(_composed(f"agent={agent}", f"env={env}"))
        return
    _, state = _abstract_step(_composed(f"agent={agent}", f"env={env}"))
    assert "agent_state" in state.get("members", state)


@pytest.mark.parametrize("agent", SEARCHED)
def test_a_population_of_any_agent_builds(agent: str) -> None:
    env = "cartpole" if agent in DISCRETE_ONLY else "pendulum"
    config = _composed("agent=meta/pbt", f"agent@inner={agent}", f"env={env}")
    workflow = build_workflow(config)
    assert isinstance(workflow, PBTWorkflow)
    assert workflow.inner.env.num_envs == OmegaConf.select(config, "inner.num_envs", default=workflow.env.num_envs)
    assert len(workflow.search_space.paths) >= 2
    assert int(config.total_timesteps) >= 20 * workflow.timesteps_per_iteration
    if env == "pendulum":
        tuned = CONFIGS / "experiment" / agent / f"{env}.yaml"
        for key, value in _leaves(OmegaConf.to_container(OmegaConf.load(tuned))) if tuned.exists() else ():
            assert OmegaConf.select(config, f"inner.{key}") == value


def test_a_population_of_an_agent_without_a_search_space() -> None:
    with pytest.raises(ValueError, match="search_space is empty"):
        build_workflow(_composed("agent=meta/pbt", "agent@inner=reinforce"))
    space = "+search_space.discount={low: 0.9, high: 0.99}"
    workflow = build_workflow(_composed("agent=meta/pbt", "agent@inner=reinforce", space))
    assert workflow.search_space.paths == ("discount",)


@pytest.mark.parametrize("agent", ["erl/erl", "erl/cemrl"])
@pytest.mark.parametrize("evolution", ["ga", "es", "eda"])
@pytest.mark.parametrize("learner", ["td3", "sac", "ddpg"])
def test_any_evolution_guides_any_learner(agent: str, evolution: str, learner: str) -> None:
    config = _composed(f"agent={agent}", f"evolution={evolution}", f"agent@learner={learner}", "env=pendulum")
    workflow = build_workflow(config)
    assert isinstance(workflow, EvolutionGuidedWorkflow)
    assert workflow.learner.learning_starts == 10_000
    assert workflow.optimizer.pop_size == 10
    expected = {"td3": "TD3Workflow", "sac": "SACWorkflow", "ddpg": "TD3Workflow"}[learner]
    assert type(workflow.learner).__name__ == expected


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_builds(experiment: str) -> None:
    agent, _, env = experiment.rpartition("/")
    assert agent in AGENTS
    assert env in ENVS
    config = _composed(f"agent={agent}", f"env={env}")
    tuned = OmegaConf.to_container(OmegaConf.load(CONFIGS / "experiment" / f"{experiment}.yaml"))
    for key, value in _leaves(tuned):
        assert OmegaConf.select(config, key) == value, f"{key} is not applied"
    _abstract_step(config)


@pytest.mark.parametrize("env", [env for env in ENVS if "brax" not in str(env) and env not in available_envs()["brax"]])
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


def test_every_environment_has_a_file() -> None:
    named = {f"{library}/{name}" for library, names in available_envs().items() for name in names}
    assert named == {env for env in ENVS if "/" in env}


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
