"""``evorl serve`` as users start it: clients connect, it learns, stops and resumes; and its errors."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evorl.cli.composition import compose_config
from evorl.cli.train import train_from_spec
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import FINISHED, STOPPED, read_state
from evorl.runs.spec import RunSpec
from tests.support.errors import raises_naming
from tests.support.rlx_client import playing

ROOT = Path(__file__).resolve().parents[2]
SPACES = ["env.obs_space={shape: [3]}", "env.action_space={shape: [2], low: -2.0, high: 1.0}"]
SMALL = [
    "agent=ppo",
    *SPACES,
    "serve.bind=127.0.0.1:0",
    "num_envs=2",
    "rollout_length=4",
    "num_epochs=1",
    "num_minibatches=1",
    "agent.network.torso=[8]",
    "total_timesteps=48",
    "log_interval=8",
    "serve.max_clients=4",
    "recorders.tensorboard=false",
    "recorders.learning_curve=false",
    "recorders.progress=false",
]


@contextmanager
def serving(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a server in a separate process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "from evorl.cli.commands import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(tmp_path: Path, process: subprocess.Popen[str], count: int = 1) -> str:
    """Return its address, once it was logged ``count`` times."""
    end = time.monotonic() + 120.0
    while time.monotonic() < end and process.poll() is None:
        logs = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("runs/*/*/run.log"))
        found = re.findall(r"Waiting for simulators at (rlx://\S+[0-9])", logs)
        if len(found) >= count:
            return found[-1]
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"it did not begin to listen: {process.communicate()[0]}")


def rows_of(folder: RunFolder) -> list[dict[str, str]]:
    with folder.metrics_csv.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_clients_come_it_learns_is_stopped_and_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, *SMALL) as process:
        address_of(tmp_path, process)
        time.sleep(0.5)  # no client connects
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
        assert time.monotonic() - started < 20.0
    assert process.returncode == 0, printed
    assert "To resume: " in printed
    folder = RunFolder.latest(tmp_path / "runs")
    assert read_state(folder.state, folder.log).state == STOPPED
    assert rows_of(folder) == []
    with serving(tmp_path, f"resume={folder.path}") as process, playing(address_of(tmp_path, process, 2), 1, 2) as some:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    assert not any(client.failure for client in some)
    assert read_state(folder.state, folder.log).state == FINISHED
    rows = rows_of(folder)
    assert [int(float(row["timesteps"])) for row in rows] == [8, 16, 24, 32, 40, 48]
    assert float(rows[-1]["serving/clients"]) == 2.0
    assert float(rows[-1]["serving/responses_per_second"]) > 0.0
    assert len(some[0].steps) + len(some[1].steps) >= 48
    assert any(folder.checkpoints.iterdir())


def test_a_time_limit_ends_the_wait_for_clients(tmp_path: Path) -> None:
    with serving(tmp_path, *SMALL, "stop.hours=1e-4") as process:
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    folder = RunFolder.latest(tmp_path / "runs")
    assert "stop.hours" in folder.log.read_text(encoding="utf-8")
    assert read_state(folder.state, folder.log).state == FINISHED


def train(tmp_path: Path, *overrides: str) -> Any:
    quiet = ["recorders.progress=false", "recorders.tensorboard=false", f"runs_folder={tmp_path}"]
    return train_from_spec(RunSpec.from_config(compose_config([*quiet, *overrides])))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["agent=ppo", "env=cartpole", "serve={}"], ("serve", "simulators", "network")),
        (["agent=ppo", "env=remote"], ("env.obs_space", "{shape: [4]}")),
        (["agent=ppo", "env=remote", SPACES[0]], ("env.action_space", "{shape")),
        (["agent=ppo", "env=remote", *SPACES, "serve.bind=0.0.0.0:7001"], ("token", "serve.token")),
        (["agent=ppo", "env=remote", *SPACES, "+serve.port=1"], ("port",)),
        (
            ["agent=dqn", "env=remote", SPACES[0], "env.action_space={n: 2}", "n_step=3"],
            ("n_step", "consecutive steps"),
        ),
        (["agent=ec/openes", "env=remote", *SPACES], ("rollouts",)),
        (
            ["agent=ppo", "env=remote", *SPACES, "+actors={kind: inline, count: 2}"],
            ("actors", "env=remote"),
        ),
        (["agent=ppo", "env=remote", *SPACES, "env.max_episode_steps=100"], ("max_episode_steps", "simulator")),
        (["agent=ppo", "env=remote", *SPACES, "render_interval=100"], ("render_interval", "clients")),
        (["agent=ppo", "env=remote", *SPACES, "evaluation.save_episodes=2"], ("save_episodes", "clients")),
        (["agent=ppo", "env=remote", *SPACES, "evaluation.plot_episodes=2"], ("plot_episodes", "clients")),
    ],
    ids=["env", "obs", "action", "token", "key", "n_step", "evolution", "actors", "limit", "render", "save", "plot"],
)
def test_what_cannot_be_is_told(overrides: list[str], parts: tuple[str, ...], tmp_path: Path) -> None:
    with raises_naming(ValueError, *parts):
        train(tmp_path, *overrides)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        bind = f"serve.bind=127.0.0.1:{other.getsockname()[1]}"
        with raises_naming(OSError, "127.0.0.1:", "in use"):
            train(tmp_path, "env=remote", *[option for option in SMALL if "bind" not in option], bind)
