"""``evorl run``: the processes that it starts, their settings, and that all of them end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evorl.apps.app_config import AppConfig
from evorl.apps.supervision import Program
from evorl.cli import app_run
from evorl.cli.app_commands import generate_from_arguments
from evorl.cli.options import RUN
from tests.support.apps import ROOT, bandit_app, still_alive, with_parameter_server
from tests.support.errors import assert_names, raises_naming

OPTIONS = {name: option.default for name, option in RUN.items()}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """Create a bandit app with free ports and three episodes in the current folder."""
    return bandit_app(tmp_path, monkeypatch)


def fake_server(app: AppConfig, extra: list[str]) -> Program:
    command = [sys.executable, "-m", "tests.support.rlx_server", str(app.server.port)]
    return Program("server", command, {"PYTHONPATH": str(ROOT)}, app.server)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ``evorl serve`` by a server that learns nothing, without a metrics page."""
    monkeypatch.setattr(app_run, "server_program", fake_server)
    monkeypatch.setattr(app_run, "metrics_programs", lambda app, **_: [])


def test_three_environments_play_and_all_processes_are_gone(
    app: AppConfig, faked: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    start = subprocess.Popen.__init__

    def noted(self: subprocess.Popen, *args, **kwargs) -> None:
        start(self, *args, **kwargs)
        pids.append(self.pid)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    assert app_run.run_from_arguments(["all", "-n", "3"]) == 0
    message = capfd.readouterr().out
    assert len(pids) == 4
    assert still_alive(pids) == []
    for number in range(3):
        assert re.search(
            rf"^\d\d:\d\d:\d\d\.\d+ environment-{number} \| regret per pull: 0\.\d+", message, re.MULTILINE
        )
    assert "3 environments have ended" in message
    assert "\x1b" not in message


def test_an_environment_that_is_not_there_is_an_error_and_nothing_is_left(
    app: AppConfig, faked: None, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("environment/bandit_app.py").unlink()
    with pytest.raises(SystemExit) as ended:
        app_run.run_from_arguments([])
    assert ended.value.code == 1
    assert_names(capfd.readouterr().out, "environment-0", "status 2")
    assert not _listens(app.server.port)


def _listens(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["parameters"], ("parameter server", "parameters: {servers: 2}", "app.yaml")),
        (["servers=2"], ("servers=2", "parameter server")),
        (["server", "servers=2"], ("servers=2", "parameter server")),
        (["server", "worker=1"], ("worker=1", "parameter server")),
        (["environment", "seed=1"], ("seed=1", "evorl run server seed=1")),
        (["metrics", "bint=0.0.0.0", "runs_folder=mine"], ("bint=0.0.0.0: not an option", "training settings")),
        (["servers"], ("app component", "'servers'", "'server'")),
        (["-n", "0"], ("n must be", "got 0")),
        (["--exploit=perhaps"], ("exploit", "true or false", "got 'perhaps'")),
        (["-c", "no.yaml"], ("no.yaml",)),
    ],
)
def test_what_cannot_be_is_told(arguments: list[str], parts: tuple[str, ...], app: AppConfig, faked: None) -> None:
    with raises_naming(ValueError, *parts):
        app_run.run_from_arguments(arguments)


@pytest.fixture
def shared(app: AppConfig) -> AppConfig:
    """Return the app with a parameter server and two servers that use it."""
    return with_parameter_server(app)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from evorl.cli.commands import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_bandit_learns_by_the_commands_of_the_guide(app: AppConfig) -> None:
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("max_episodes: 3", "max_episodes: 100"))
    done = _run("run", "server", "environment")
    assert done.returncode == 0, done.stdout + done.stderr
    (regret,) = re.findall(r"regret per pull: (\S+) in the first 10 episodes, (\S+) in the last 10", done.stdout)
    assert float(regret[1]) < 0.5 * float(regret[0]), regret
    # A pull of any other arm loses at least 0.224: more than 90 % of the pulls use the best arm.
    assert float(regret[1]) < 0.1 * 0.224, regret
    assert not _listens(app.server.port)


def test_two_servers_learn_for_one_parameter_server_from_four_simulators(shared: AppConfig) -> None:
    assert shared.parameters is not None
    file = Path("app.yaml")
    file.write_text(file.read_text().replace("max_episodes: 3", "max_episodes: 100"))
    done = _run("run", "parameters", "server", "environment", "-n", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    regrets = re.findall(r"environment-\d +\| regret per pull: (\S+) in .*, (\S+) in the last 10", done.stdout)
    assert len(regrets) == 4
    assert all(float(last) < 0.1 * 0.224 for _, last in regrets), regrets
    assert max(float(first) for first, _ in regrets) > 0.1 * 0.224, regrets  # late clients find a trained policy
    pushes = re.findall(r"server-\d +\| Worker (\d): (\d+) of \d+ pushes accepted", done.stdout)
    assert {number for number, _ in pushes} == {"0", "1"}
    assert all(int(count) > 10 for _, count in pushes), pushes
    assert not any(_listens(port) for port in (shared.parameters.address.port, shared.server.port))


def test_a_constant_of_an_own_algorithm_is_used(app: AppConfig) -> None:
    generate_from_arguments(["-a", "reinforce"])
    source = Path("algorithm/reinforce.py")
    source.write_text(source.read_text() + "\nprint('by a changed file')\n")
    done = _run("run", "server", "environment", "total_timesteps=128")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"server +\| by a changed file", done.stdout), done.stdout


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
    while "First step in" not in text:
        line = process.stdout.readline()
        assert line, text
        text += line
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text + rest
    assert not _listens(app.server.port)
