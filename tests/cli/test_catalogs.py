"""Records of environments and agents agree with the environments, the classes and the config tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evorl
from evorl.cli.catalogs import AgentInfo, EnvInfo
from evorl.cli.composition import compose_config
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.options import FAMILIES
from evorl.config.yaml_text import read_text_file, read_yaml
from tests.support.env_spaces import FILE, described_configs, spaces_of
from tests.support.errors import raises_naming

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def envs() -> dict[str, EnvInfo]:
    return {env.name: env for env in evorl.list_envs()}


@pytest.fixture(scope="module")
def agents() -> dict[str, AgentInfo]:
    return {agent.name: agent for agent in evorl.list_agents()}


@pytest.mark.parametrize("config", described_configs())
def test_spaces_are_those_of_the_environment(config: str) -> None:
    if config.startswith("atari/"):
        pytest.importorskip("ale_py")
    assert read_yaml(read_text_file(FILE), str(FILE))[config] == spaces_of(config)


def test_every_config_has_spaces_and_nothing_else_has() -> None:
    assert list(read_yaml(read_text_file(FILE), str(FILE))) == described_configs()


def test_environments_have_paths_spaces_agents_and_requirements(envs: dict[str, EnvInfo]) -> None:
    hopper = envs["hopper"]
    assert (hopper.path, hopper.library, hopper.obs_space, hopper.action_space) == (
        *("brax/hopper", "brax", "Box(11)", "Box(3)"),
    )
    assert {"ppo", "sac", "td3"} <= set(hopper.tuned)
    assert envs["atari/pong"].path == "gymnasium/ALE/Pong-v5"
    assert envs["atari/pong"].needs == "extra atari"
    assert (envs["user"].path, envs["user"].obs_space) == ("user", "")
    assert envs["gymnasium/LunarLander-v3"].needs == "extra box2d"
    assert not envs["gymnasium/LunarLander-v3"].is_config
    assert "brax/hopper" not in envs  # listed by its short name


def test_tuned_settings_are_those_that_a_training_reads(envs: dict[str, EnvInfo]) -> None:
    for agent in ("ppo", "dqn"):
        for env in ("cartpole", "ant", "playground/WalkerWalk", "goal/reacher"):
            plain = compose_config([f"agent={agent}", f"env={env}", "~experiment"])
            tuned = compose_config([f"agent={agent}", f"env={env}"])
            assert (agent in envs[env].tuned) == (plain != tuned), (agent, env)


def test_environments_are_filtered(envs: dict[str, EnvInfo]) -> None:
    assert {env.library for env in evorl.list_envs(library="goal")} == {"goal"}
    assert "pendulum" not in {env.name for env in evorl.list_envs("PEND", actions="discrete")}
    assert [env.name for env in evorl.list_envs("cartpole-v1", agent="pqn")] == ["cartpole", "gymnasium/CartPole-v1"]
    assert {env.name for env in evorl.list_envs("gymnax/")} >= {"cartpole", "pendulum"}  # part of the path
    continuous = {env.name for env in evorl.list_envs(actions="continuous")}
    assert "hopper" in continuous
    assert "cartpole" not in continuous
    with raises_naming(ValueError, "'bracks'", "'brax'"):
        evorl.list_envs(library="bracks")
    with raises_naming(ValueError, "'pp'", "'ppo'"):
        evorl.list_envs(agent="pp")


def test_agents_have_their_page_and_their_class(agents: dict[str, AgentInfo]) -> None:
    assert list(agents) == config_names(config_folder() / "agent")
    for agent in agents.values():
        assert (ROOT / "docs" / f"{agent.page}.md").is_file(), agent.name
        assert agent.discrete or agent.continuous
        assert agent.description[0] not in "#@"
        assert agent.family in FAMILIES
    assert {agent.family for agent in agents.values()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "family", "actions", "abilities"),
    [
        ("ppo", "on-policy", "both", {"memory"}),
        ("dqn", "off-policy", "discrete", {"goals"}),
        ("rainbow", "off-policy", "discrete", set()),  # prioritized, which excludes relabeled goals
        ("td3", "off-policy", "continuous", {"goals"}),
        ("iql", "off-policy", "both", {"goals", "offline"}),
        ("r2d2", "off-policy", "discrete", {"memory"}),
        ("simba_v2", "off-policy", "continuous", {"goals"}),  # categorical values
        ("ec/cmaes", "evolution", "both", set()),
        ("erl/erl", "evolution-guided", "continuous", {"goals"}),  # of its learner, TD3
        ("qd/map_elites", "quality-diversity", "both", set()),
        ("meta/pbt", "population", "both", {"memory"}),  # of its inner algorithm, PPO
        ("random", "baseline", "both", set()),
    ],
)
def test_abilities_of_agents(
    name: str, family: str, actions: str, abilities: set[str], agents: dict[str, AgentInfo]
) -> None:
    agent = agents[name]
    assert agent.family == family
    assert (agent.discrete, agent.continuous) == (actions != "continuous", actions != "discrete")
    assert {ability for ability in ("memory", "offline", "goals") if getattr(agent, ability)} == abilities


def test_agents_are_filtered(agents: dict[str, AgentInfo]) -> None:
    assert [agent.name for agent in evorl.list_agents("schulman", continuous=True)] == ["ppo", "trpo"]
    assert {agent.name for agent in evorl.list_agents(offline=True)} == {"iql", "td3_bc"}
    both = evorl.list_agents(memory=True, discrete=True, family="off-policy")
    assert [agent.name for agent in both] == ["r2d2", "recurrent_sac"]
    assert "brax/*" in agents["ppo"].tuned
    assert "cartpole" in agents["ppo"].tuned
    with raises_naming(ValueError, "'offpolicy'", "'off-policy'"):
        evorl.list_agents(family="offpolicy")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("actions", ["box", "Discrete", "", "discret"])
def test_an_unknown_kind_of_actions_is_rejected(actions: Any) -> None:
    with raises_naming(ValueError, repr(actions), "discrete", "continuous"):
        evorl.list_envs(actions=actions)
