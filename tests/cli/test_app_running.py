"""evorl run: which processes, with what, and that none is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evorl.apps.app_config import Address, AppConfig, read_app
from evorl.apps.supervision import Program
from evorl.cli import app_running
from evorl.cli.app_commands import generate_from_arguments, new_from_arguments
from evorl.cli.commands import COMMANDS
from tests.support.apps import ROOT, free_port, free_ports, still_alive

OPTIONS = {name: option.default for name, option in app_running.OPTIONS.items()}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """A bandit's app at free ports, of three episodes."""
    monkeypatch.chdir(tmp_path)
    new_from_arguments(["bandit-test", "env=bandit"])
    monkeypatch.chdir("bandit-test")
    file = Path("app.yaml")
    text = file.read_text().replace("127.0.0.1:7001", f"127.0.0.1:{free_port()}")
    text = text.replace("127.0.0.1:7002", f"127.0.0.1:{free_port()}").replace("max_episodes: 100", "max_episodes: 3")
    file.write_text(text)
    return read_app(file)


def fake_server(app: AppConfig, extra: list[str]) -> Program:
    command = [sys.executable, "-m", "tests.support.fake_agent_server", str(app.server.port)]
    return Program("server", command, {"PYTHONPATH": str(ROOT)}, app.server)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that learns nothing in place of evorl serve, and no page."""
    monkeypatch.setattr(app_running, "server_program", fake_server)
    monkeypatch.setattr(app_running, "metrics_programs", lambda app, needed: [])


def test_the_server_is_told_the_training_and_the_secret_is_not_among_its_words(app: AppConfig) -> None:
    secret = replace(app, server=Address("0.0.0.0", 7001, "a secret word"), agent="own/ppo", algorithm="algorithm")
    program = app_running.server_program(secret, ["seed=3"])
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
    programs = app_running.environment_programs(app, {**OPTIONS, "n": 3, "exploit": True, "show_ui": True})
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


def test_three_environments_play_and_all_processes_are_gone(
    app: AppConfig, faked: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    start = subprocess.Popen.__init__

    def noted(self: subprocess.Popen, *args, **kwargs) -> None:
        start(self, *args, **kwargs)
        pids.append(self.pid)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    assert app_running.run_from_arguments(["all", "-n", "3"]) == 0
    said = capfd.readouterr().out
    assert len(pids) == 4
    assert still_alive(pids) == []
    for number in range(3):
        assert re.search(rf"^\d\d:\d\d:\d\d\.\d+ environment-{number} \| regret per pull: 0\.\d+", said, re.MULTILINE)
    assert "3 environments have ended" in said
    assert "\x1b" not in said


def test_an_environment_that_is_not_there_is_an_error_and_nothing_is_left(
    app: AppConfig, faked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("environment/bandit_app.py").unlink()
    with pytest.raises(SystemExit) as ended:
        app_running.run_from_arguments([])
    assert ended.value.code == 1
    assert "environment-0 failed with status 2" in capfd.readouterr().out
    assert not _listens(app.server.port)


def _listens(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["parameters"], "this app has no parameter server: write parameters: {servers: 2} into app.yaml"),
        (["servers=2"], "servers=2, but this app has no parameter server"),
        (["servers"], "there is no part of an app 'servers'. Did you mean 'server'"),
        (["-n", "0"], "n must be a positive whole number, got 0"),
        (["--exploit=perhaps"], "exploit must be true or false"),
        (["-c", "no.yaml"], "there is no no.yaml"),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], says: str, app: AppConfig, faked: None) -> None:
    with pytest.raises(ValueError) as raised:
        app_running.run_from_arguments(arguments)
    assert says in str(raised.value)


@pytest.fixture
def shared(app: AppConfig) -> AppConfig:
    """The app with a parameter server and two servers that learn for it."""
    file = Path("app.yaml")
    text = file.read_text().replace(
        f"127.0.0.1:{app.server.port}", f"127.0.0.1:{free_ports(2, app_running.PORTS_APART)}"
    )
    parameters = f"parameters: {{servers: 2, mode: averaging, num_gradients: 2, bind: '127.0.0.1:{free_port()}'}}"
    file.write_text(re.sub(r"^parameters: .*$", parameters, text, flags=re.MULTILINE))
    return read_app(file)


def test_servers_that_learn_for_a_parameter_server(shared: AppConfig) -> None:
    assert shared.parameters is not None
    word = "a secret word"
    own = replace(shared, algorithm="algorithm", server=replace(shared.server, token=word))
    where = replace(shared.parameters, address=replace(shared.parameters.address, token="another word"))
    own = replace(own, parameters=where)
    programs = app_running.parameter_programs(own, {"parameters", "server"}, OPTIONS | {"worker": 3}, ["seed=3"])
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
    players = app_running.environment_programs(own, {**OPTIONS, "n": 3})
    ports = [int(program.variables["EVORL_SERVER"].rpartition(":")[2]) - own.server.port for program in players]
    assert ports == [0, 10, 0]


def test_what_is_not_run_here_is_waited_for(shared: AppConfig) -> None:
    assert shared.parameters is not None

    def names(chosen: set[str], **changes: int) -> list[tuple[str, bool]]:
        programs = app_running.parameter_programs(shared, chosen, OPTIONS | changes)
        return [(program.name, bool(program.command)) for program in programs]

    port = shared.server.port
    assert names({"server"}, servers=1, worker=1) == [("parameters", False), ("server-1", True)]
    assert names({"environment"}) == [(f"server at 127.0.0.1:{port + 10 * i}", False) for i in range(2)]
    assert names({"parameters"}) == [("parameters", True)]
    with pytest.raises(ValueError, match="seed=3 is of the training, which the parameter server has"):
        app_running.parameter_programs(shared, {"server"}, OPTIONS, ["seed=3"])


needs_serve = pytest.mark.skipif("serve" not in COMMANDS, reason="this evorl has no training server")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from evorl.cli.commands import main; main()", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@needs_serve
def test_the_bandit_learns_by_the_commands_of_the_guide(app: AppConfig) -> None:
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("max_episodes: 3", "max_episodes: 100"))
    done = _run("run", "server", "environment")
    assert done.returncode == 0, done.stdout + done.stderr
    (regret,) = re.findall(r"regret per pull: (\S+) in the first 10 episodes, (\S+) in the last 10", done.stdout)
    assert float(regret[1]) < 0.5 * float(regret[0]), regret
    # A pull of any other arm loses 0.224 at least: more than nine of ten are of the best one.
    assert float(regret[1]) < 0.1 * 0.224, regret
    assert not _listens(app.server.port)


@needs_serve
def test_two_servers_learn_for_one_parameter_server_from_four_simulators(shared: AppConfig) -> None:
    assert shared.parameters is not None
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("max_episodes: 3", "max_episodes: 100"))
    done = _run("run", "parameters", "server", "environment", "-n", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    regrets = re.findall(r"environment-\d +\| regret per pull: (\S+) in .*, (\S+) in the last 10", done.stdout)
    assert len(regrets) == 4
    assert all(float(last) < 0.1 * 0.224 for _, last in regrets), regrets
    assert max(float(first) for first, _ in regrets) > 0.1 * 0.224, regrets  # who comes late finds it learned
    pushes = re.findall(r"server-\d +\| Worker (\d): (\d+) of \d+ pushes counted", done.stdout)
    assert {number for number, _ in pushes} == {"0", "1"}
    assert all(int(count) > 10 for _, count in pushes), pushes
    assert not any(_listens(port) for port in (shared.parameters.address.port, shared.server.port))


@needs_serve
def test_a_constant_of_an_own_algorithm_is_used(app: AppConfig) -> None:
    generate_from_arguments(["-a", "reinforce"])
    source = Path("algorithm/reinforce.py")
    source.write_text(source.read_text() + "\nprint('by a changed file')\n")
    done = _run("run", "server", "environment", "total_timesteps=128")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"server +\| by a changed file", done.stdout), done.stdout


@needs_serve
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_saves_the_training_and_leaves_nothing(app: AppConfig) -> None:
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("infinite_run: false", "infinite_run: true"))
    process = subprocess.Popen(
        [sys.executable, "-c", "from evorl.cli.commands import main; main()", "run", "server", "environment"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    text = ""
    while "server is at" not in text:
        line = process.stdout.readline()
        assert line, text
        text += line
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text + rest
    assert not _listens(app.server.port)


def test_the_page_is_of_the_runs_of_this_app_and_its_secret_is_not_among_its_words(app: AppConfig) -> None:
    (program,) = app_running.metrics_programs(replace(app, metrics=Address("127.0.0.1", 7002, "a word")), needed=False)
    assert list(program.command)[3:] == ["watch", "bind=127.0.0.1", "port=7002"]
    assert (program.listens, program.needed) == (Address("127.0.0.1", 7002, "a word"), False)
    assert program.variables == {"EVORL_TOKEN": "a word"}
    with pytest.raises(ValueError, match="metrics has no address"):
        app_running.metrics_programs(replace(app, metrics=None), needed=True)
