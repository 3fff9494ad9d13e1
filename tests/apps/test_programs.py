"""Programs of an app and their command lines."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evorl.apps import programs as app_programs
from evorl.apps.app_config import Address, AppConfig
from evorl.cli.options import RUN
from tests.support.apps import bandit_app, with_parameter_server
from tests.support.errors import raises_naming

OPTIONS = {name: option.default for name, option in RUN.items()}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """Create a bandit app with free ports and three episodes in the current folder."""
    return bandit_app(tmp_path, monkeypatch)


def test_the_server_is_told_the_training_and_the_secret_is_not_among_its_words(app: AppConfig) -> None:
    secret = replace(app, server=Address("0.0.0.0", 7001, "a secret word"), agent="own/ppo", algorithm="algorithm")
    program = app_programs.server_program(secret, ["seed=3"])
    words = list(program.command)
    assert words[3:9] == [
        "serve",
        "agent=own/ppo",
        "env=remote",
        "env.obs_space={shape: [0]}",
        "env.action_space={n: 4}",
        "total_timesteps=100000",
    ]
    assert {"optimizer.learning_rate=0.005", "serve.bind=0.0.0.0:7001", "serve.token=env:EVORL_SERVER_TOKEN"} < set(
        words
    )
    assert words[-3:] == ["seed=3", "--config-dir", str(app.folder / "algorithm")]
    assert not any("secret" in word for word in words)
    assert program.variables["EVORL_SERVER_TOKEN"] == "a secret word"
    assert program.variables["PYTHONPATH"].split(os.pathsep)[0] == str(app.folder)


def test_only_the_first_environment_exploits_and_shows_itself(app: AppConfig) -> None:
    programs = app_programs.environment_programs(app, {**OPTIONS, "n": 3, "exploit": True, "show_ui": True})
    handed = [json.loads(program.variables["EVORL_APP"]) for program in programs]
    assert [program.name for program in programs] == ["environment-0", "environment-1", "environment-2"]
    assert [(each["number"], each["exploit"], each["show_ui"]) for each in handed] == [
        (0, True, True),
        (1, False, False),
        (2, False, False),
    ]
    assert handed[1]["environment"]["thresholds"] == [0.2, 0.0, -0.2, -0.5]
    assert handed[1]["run"] == {"max_episodes": 3, "infinite_run": False}
    assert programs[0].variables["EVORL_SERVER"] == str(app.server)
    assert programs[0].command == [sys.executable, "environment/bandit_app.py"]


@pytest.fixture
def shared(app: AppConfig) -> AppConfig:
    """Return the app with a parameter server and two servers that use it."""
    return with_parameter_server(app)


def test_servers_that_learn_for_a_parameter_server(shared: AppConfig) -> None:
    assert shared.parameters is not None
    word = "a secret word"
    own = replace(shared, algorithm="algorithm", server=replace(shared.server, token=word))
    where = replace(shared.parameters, address=replace(shared.parameters.address, token="another word"))
    own = replace(own, parameters=where)
    programs = app_programs.parameter_programs(own, {"parameters", "server"}, OPTIONS | {"worker": 3}, ["seed=3"])
    assert [program.name for program in programs] == ["parameters", "server-3", "server-4"]
    assert [program.listens for program in programs] == [
        where.address,
        own.server,
        replace(own.server, port=own.server.port + 10),
    ]
    keeper, _, second = (list(program.command)[3:] for program in programs)
    assert keeper[0] == "serve-parameters"
    assert {"parameters.mode=averaging", f"parameters.bind={where.address}", "total_timesteps=100000"} <= set(keeper)
    assert keeper[-3:] == ["seed=3", "--config-dir", str(own.folder / "algorithm")]
    assert second == [
        "work",
        str(where.address),
        "worker=4",
        f"serve.bind=127.0.0.1:{own.server.port + 10}",
        "serve.token=env:EVORL_SERVER_TOKEN",
        "token=env:EVORL_PARAMETERS_TOKEN",
        "trust=true",
    ]
    assert programs[2].variables["EVORL_SERVER_TOKEN"] == word
    assert programs[2].variables["EVORL_PARAMETERS_TOKEN"] == "another word"
    assert not any("word" in argument for program in programs for argument in program.command)
    players = app_programs.environment_programs(own, {**OPTIONS, "n": 3})
    ports = [int(program.variables["EVORL_SERVER"].rpartition(":")[2]) - own.server.port for program in players]
    assert ports == [0, 10, 0]


def test_what_is_not_run_here_is_waited_for(shared: AppConfig) -> None:
    assert shared.parameters is not None

    def names(chosen: set[str], **changes: int) -> list[tuple[str, bool]]:
        programs = app_programs.parameter_programs(shared, chosen, OPTIONS | changes)
        return [(program.name, bool(program.command)) for program in programs]

    port = shared.server.port
    assert names({"server"}, servers=1, worker=1) == [("parameters", False), ("server-1", True)]
    assert names({"environment"}) == [(f"server at 127.0.0.1:{port + 10 * i}", False) for i in range(2)]
    assert names({"parameters"}) == [("parameters", True)]
    with raises_naming(ValueError, "seed=3", "parameter server"):
        app_programs.parameter_programs(shared, {"server"}, OPTIONS, ["seed=3"])


def test_the_page_is_of_the_runs_of_this_app_and_its_secret_is_not_among_its_words(app: AppConfig) -> None:
    (program,) = app_programs.metrics_programs(replace(app, metrics=Address("127.0.0.1", 7002, "a word")), needed=False)
    assert list(program.command)[3:] == ["watch", "bind=127.0.0.1", "port=7002"]
    assert (program.listens, program.needed) == (Address("127.0.0.1", 7002, "a word"), False)
    assert program.variables == {"EVORL_TOKEN": "a word"}
    elsewhere = replace(app, training={**app.training, "runs_folder": "/data/my runs"})
    for extra, folder in ((["seed=1"], "/data/my runs"), (["runs_folder=mine"], "mine")):
        (program,) = app_programs.metrics_programs(elsewhere, needed=False, extra=extra)
        assert program.command[-1] == f"runs_folder={folder}"
    with raises_naming(ValueError, "metrics", "address"):
        app_programs.metrics_programs(replace(app, metrics=None), needed=True)
