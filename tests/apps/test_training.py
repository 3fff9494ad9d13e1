"""Training settings of an app as ``evorl serve`` arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evorl.apps.app_config import AppConfig, read_app
from evorl.apps.app_files import make_app
from evorl.apps.training import as_overrides, own_configs, refuse_named_code, training_words
from evorl.cli.app_agents import agent_facts, check_training
from evorl.cli.composition import compose_config
from tests.support.errors import raises_naming


def app_of(tmp_path: Path, agent: str, kind: str) -> AppConfig:
    facts = agent_facts(agent)
    make_app(tmp_path / "app", kind, agent, facts.default_training(kind), facts.in_boxes)
    return read_app(tmp_path / "app" / "app.yaml")


def test_settings_are_words_that_hydra_takes_as_they_are_meant() -> None:
    settings = {
        "total_timesteps": 1e5,
        "title": "it's: a, {title}",
        "optimizer": {"learning_rate": {"start": 0.1, "end": 0.0}, "options": {"nesterov": True}},
        "agent": {"network": {"torso": [{"conv": {"filters": 8, "size": 3}}, "flatten", 32]}, "clip_epsilon": 0.1},
        "actors": {"kind": "process", "count": 2},
    }
    arguments = list(as_overrides(settings))
    assert "actors={kind: process, count: 2}" in arguments
    config = OmegaConf.to_container(compose_config(["agent=ppo", "env=cartpole", *arguments]))
    assert isinstance(config, dict)
    assert {name: config[name] for name in ("total_timesteps", "title", "actors")} == {
        name: settings[name] for name in ("total_timesteps", "title", "actors")
    }
    assert config["agent"]["network"]["torso"] == settings["agent"]["network"]["torso"]
    assert config["agent"]["network"]["activation"] == "tanh"
    assert (config["optimizer"]["name"], config["optimizer"]["options"]) == ("adam", {"nesterov": True})
    assert config["optimizer"]["learning_rate"]["start"] == 0.1


def test_an_algorithm_of_its_own_is_named_by_a_folder_and_left_to_the_server(tmp_path: Path) -> None:
    app = app_of(tmp_path, "ppo", "empty")
    assert own_configs(app) == []
    own = replace(app, algorithm="algorithm", agent="own/ppo")
    assert own_configs(own) == ["--config-dir", str(app.folder / "algorithm")]
    assert check_training(own) is None
    assert training_words(own) == [
        "agent=own/ppo",
        "env=remote",
        "env.obs_space={shape: [1], dtype: float32, low: -2, high: 2}",
        "env.action_space={n: 2}",
    ]


@pytest.mark.parametrize(
    ("training", "setting", "replacement"),
    [
        ({"optimizer": {"name": "theirs:sgd"}}, "optimizer.name", "my_parts:sgd"),
        ({"recorders": {"own": ["os:system"]}}, "recorders.own", "[]"),
        ({"recorders.own": [{"name": "os:system"}]}, "recorders.own", "[my_parts:Recorder]"),
        ({"agent": {"network": {"torso": [8, "theirs:Layer"]}}}, "agent.network.torso", "[8]"),
    ],
)
def test_code_that_an_app_names_is_refused_unless_the_user_gives_the_setting(
    training: dict[str, Any], setting: str, replacement: str, tmp_path: Path
) -> None:
    app = replace(app_of(tmp_path, "ppo", "empty"), training=training)
    with raises_naming(ValueError, "app.yaml", "outside evorl", setting, "trust it"):
        refuse_named_code(app, ["seed=1", f"{setting}_other=1"])
    refuse_named_code(app, ["seed=1", f"{setting}={replacement}"])
