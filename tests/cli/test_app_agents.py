"""Training settings of an app as ``evorl serve`` arguments."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from evorl.apps.app_config import AppConfig, read_app
from evorl.apps.app_files import make_app
from evorl.apps.kinds import IMAGE_KINDS, KINDS
from evorl.assembly import workflow_from_config
from evorl.cli.app_agents import agent_facts, check_training, experiments, served_agents, settings_of_experiment
from evorl.execution.trainable import collected_by
from evorl.serving.client import AgentProxy
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.training_server import TrainingServer
from tests.support.apps import ROOT
from tests.support.errors import raises_naming

# The six algorithms of the predecessor, by their names in evorl, and the defaults of apps.
AGENTS = ("a2c", "ddpg", "ppo", "dqn", "reinforce", "trpo", "impala", "sac")

# Networks and buffers that compile quickly.
SMALL = {"agent": {"network": {"torso": [4]}}}


def app_of(tmp_path: Path, agent: str, kind: str) -> AppConfig:
    facts = agent_facts(agent)
    make_app(tmp_path / "app", kind, agent, facts.default_training(kind), facts.in_boxes)
    return read_app(tmp_path / "app" / "app.yaml")


@pytest.mark.parametrize("kind", IMAGE_KINDS)
@pytest.mark.parametrize("agent", ["ddpg", "td3", "tqc"])
def test_critics_of_flat_observations_get_no_pictures(agent: str, kind: str, tmp_path: Path) -> None:
    with raises_naming(ValueError, "sends images", "impala"):
        app_of(tmp_path, agent, kind)
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize("kind", IMAGE_KINDS)
@pytest.mark.parametrize("agent", served_agents())
def test_critics_with_their_own_layers_read_pictures_as_the_policy_does(agent: str, kind: str, tmp_path: Path) -> None:
    facts = agent_facts(agent)
    if facts.in_boxes:  # these are rejected, see above
        return
    critics = check_training(app_of(tmp_path, agent, kind)).agent.get("critic_network")
    assert critics is None or critics.torso is None
    assert facts.own_critic_layers == (agent in ("crossq", "simba"))


@pytest.mark.parametrize(
    ("agent", "kind"), [(a, k) for a in AGENTS for k in KINDS if a != "ddpg" or k not in IMAGE_KINDS]
)
def test_every_pair_is_a_training_that_can_be_built(agent: str, kind: str, tmp_path: Path) -> None:
    config = check_training(app_of(tmp_path, agent, kind))
    assert config.workflow.startswith("evorl.algorithms.")
    settings = {**OmegaConf.to_container(config), "num_envs": 2, "num_minibatches": 1, "replay_capacity": 100}
    left_out = {"num_minibatches", "replay_capacity"} - set(config)
    run_settings = {"serve", "env_chunk", "eval_episodes"}
    settings = {name: value for name, value in settings.items() if name not in left_out | run_settings}
    workflow = workflow_from_config({**settings, "devices": 1})
    shape = workflow.env.obs_space.shape
    assert shape == (84, 84, 4) if kind in ("vizdoom", "deepmind-lab") else len(shape) == 1


def test_agents_that_need_data_or_a_population_are_not_served() -> None:
    served = served_agents()
    assert set(AGENTS) < set(served)
    assert not {"iql", "td3_bc", "random", "ec/openes", "erl/erl", "meta/pbt"} & set(served)
    with raises_naming(ValueError, "iql", "recorded steps"):
        agent_facts("iql")
    with raises_naming(ValueError, "'pp'", "'ppo'"):
        agent_facts("pp")
    assert [agent for agent in served if agent_facts(agent).in_boxes] == [
        "bro",
        "ddpg",
        "fast_td3",
        "pqn_continuous",
        "reppo",
        "rlpd",
        "td3",
        "tqc",
    ]
    assert agent_facts("ddpg").source.name == "td3.py"


def test_what_needs_consecutive_steps_is_refused_with_those_that_can_be_served() -> None:
    for agent in ("r2d2", "rainbow"):
        with raises_naming(ValueError, f"{agent} cannot be served", "n_step", "dqn", "trpo"):
            agent_facts(agent)
    assert not {"r2d2", "rainbow"} & set(served_agents())


def test_settings_that_the_server_would_refuse_are_refused_in_the_app(tmp_path: Path) -> None:
    app = app_of(tmp_path, "dqn", "bandit")
    with raises_naming(ValueError, "dqn cannot be served", "n_step"):
        check_training(replace(app, training={**app.training, "n_step": 3}))


@pytest.mark.parametrize("experiment", ["dqn/cartpole", "sac/goal/reacher"])
def test_an_experiment_leaves_out_what_needs_consecutive_steps(experiment: str, tmp_path: Path) -> None:
    agent, training = settings_of_experiment(experiment)
    assert not {"n_step", "replay"} & set(training)
    assert training["total_timesteps"]
    check_training(replace(app_of(tmp_path, agent, "empty"), training=training))


def test_pages_and_kinds_name_agents_that_can_be_served() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "guide").glob("*.md"))
    listed = re.search(r"^(PPO, .*) and related algorithms can be served", pages, re.MULTILINE)
    assert listed is not None
    named = set(re.findall(r"evorl serve agent=(\w+)", pages)) | {kind.agent for kind in KINDS.values()}
    named |= {name.lower() for name in listed[1].split(", ")}
    assert len(named) >= 10
    assert named <= set(served_agents())


@pytest.mark.parametrize("agent", served_agents())
def test_every_agent_that_can_be_served_is_started_and_acts(agent: str, tmp_path: Path) -> None:
    config = check_training(app_of(tmp_path, agent, "bandit"))
    config.merge_with(SMALL)
    workflow = workflow_from_config(config)
    server = TrainingServer(workflow, ServeSettings(bind="127.0.0.1:0", max_clients=1))
    state = collected_by(workflow, server).init(0)
    with contextlib.closing(server):
        acting, _ = workflow.acting(state)
        server._publish(acting, lambda _: None)
        assert server._thread is not None
        host, port = server._thread.addresses[0].removeprefix("rlx://").split(":")
        client = AgentProxy((host, int(port)))
        client.connect()
        client.init(exploit=False)
        action = client.update(None, [], False)
        client.disconnect()
    assert isinstance(action, list if agent_facts(agent).in_boxes else int)


def test_a_wrong_setting_is_told_with_the_nearest(tmp_path: Path) -> None:
    app = app_of(tmp_path, "ppo", "bandit")
    with raises_naming(ValueError, "'agent.clip_epsilom'", "'agent.clip_epsilon'"):
        check_training(replace(app, training={"agent": {"clip_epsilom": 0.1}}))
    with raises_naming(ValueError, "agent 'ppi'", "'ppo'"):
        check_training(replace(app, agent="ppi"))


def test_what_an_experiment_tunes(tmp_path: Path) -> None:
    assert "ppo/cartpole" in experiments()
    agent, tuned = settings_of_experiment("sac/goal/reacher" if "sac/goal/reacher" in experiments() else "ppo/cartpole")
    assert agent in ("sac", "ppo")
    assert tuned
    assert "env" not in tuned
    agent, tuned = settings_of_experiment("a2c/cartpole")
    assert (agent, tuned) == ("a2c", {"agent": {"entropy_coefficient": 0.01}})
    with raises_naming(ValueError, "'ppo/cartpol'", "'ppo/cartpole'"):
        settings_of_experiment("ppo/cartpol")
