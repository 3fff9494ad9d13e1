"""A parameter server and its workers by their commands: processes that end, stop, resume and reject."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from evorl.assembly import workflow_from_config
from evorl.cli.train import serve_parameters
from evorl.cli.work import work_from_arguments
from evorl.parameter_server.client import ParameterClient, ServerLost
from evorl.parameter_server.service import parameter_service, settle_parameters, token_of, worker_config
from evorl.parameter_server.worker_process import check_worker_config
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.training.preparation import prepare_training
from tests.support.certificate import write_certificate
from tests.support.command_line import SMALL
from tests.support.config_files import spec_of
from tests.support.errors import missing_parts, raises_naming
from tests.support.waiting import wait_until

EVORL = [sys.executable, "-c", "from evorl.cli.commands import main; main()"]
SERVER = [
    "agent=a2c",
    *(word for word in SMALL if not word.startswith(("num_epochs", "num_minibatches", "total_timesteps", "eval_"))),
    "eval_interval=320",
    "eval_episodes=4",
    "parameters.bind=127.0.0.1:0",
]


@contextlib.contextmanager
def _serving(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server process and yield it with its address."""
    command = [*EVORL, "serve-parameters", *words]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if found := re.search(r"evorl work (\S+) worker=0", line):
                yield server, found[1]
                return
        raise AssertionError(f"it never served: {''.join(lines)}")
    finally:
        server.kill()
        server.communicate()


def _worker(address: str, number: int, *words: str) -> subprocess.Popen[str]:
    command = [*EVORL, "work", address, f"worker={number}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_workers_train_to_the_end(tmp_path: Path) -> None:
    words = [*SERVER, f"runs_folder={tmp_path}", "total_timesteps=640", "parameters.mode=averaging"]
    profile = tmp_path / "profile"
    with _serving([*words, "parameters.num_gradients=2", f"parameters.profile_dir={profile}"]) as (server, address):
        workers = [_worker(address, number, f"profile_dir={profile}") for number in range(2)]
        for number, worker in enumerate(workers):
            output, _ = worker.communicate(timeout=240)
            assert worker.returncode == 0, output
            assert f"Worker {number}: " in output
        printed, _ = server.communicate(timeout=60)
        assert server.returncode == 0, printed
    (table,) = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert int(rows[-1]["timesteps"]) >= 640
    assert float(rows[-1]["eval/episode_return"]) > 0
    spans = [event for event in json.loads((profile / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len({span["pid"] for span in spans if span["name"] == "push"}) == 3  # the server and each worker
    assert len({span["pid"] for span in spans if span["name"] == "update"}) == 2
    assert all(span["dur"] > 0 for span in spans)


def test_an_ordinary_run_does_not_go_on_by_a_parameter_server(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, OmegaConf.create({"workflow": "evorl.algorithms.a2c.A2CWorkflow"}))
    with raises_naming(ValueError, "evorl train resume="):
        serve_parameters([f"resume={folder.path}"])


def test_a_server_that_was_stopped_goes_on(tmp_path: Path) -> None:
    with _serving([*SERVER, f"runs_folder={tmp_path}", "total_timesteps=1e8", "eval_interval=0"]) as (server, address):
        worker = _worker(address, 0)
        try:
            with ParameterClient(address) as client:
                wait_until(lambda: client.n_step()["step"], 240.0)
        finally:
            worker.kill()
            worker.communicate()
        with ParameterClient(address) as client:
            stopped_at = client.n_step()["step"]
        server.send_signal(signal.SIGINT)
        printed, _ = server.communicate(timeout=60)
        assert server.returncode == 0, printed
        assert "To resume: " in printed
    assert stopped_at > 0
    (run,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    with _serving([f"resume={run}"]) as (_, address), ParameterClient(address) as client:
        assert client.n_step()["step"] == stopped_at


def _spec(*words: str) -> RunSpec:
    return settle_parameters(spec_of("agent=a2c", "parameters=server", "env=cartpole", *words), False)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["parameters.mode=avg"], ("mode", "averaging")),
        (["parameters.bind=0.0.0.0:7000"], ("token",)),
        (["parameters.token=short"], ("8 characters",)),
        (["parameters.cert=cert.pem"], ("TLS", "parameters.cert=<file>")),
        (["+parameters.mod=fifo"], ("'mod'", "'mode'")),
        (["num_seeds=2"], ("num_seeds",)),
    ],
)
def test_wrong_settings_are_told(words: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        spec = _spec(*words)
        parameter_service(workflow_from_config(spec.workflow_config()), spec)


@pytest.mark.parametrize("words", [["init_from.run=latest"], ["devices=2"], ["sweep={discount: [0.9, 0.99]}"]])
def test_what_goes_with_no_parameter_server(words: list[str]) -> None:
    with raises_naming(ValueError, "parameter server"):
        _spec(*words)


def test_secrets_stay_with_the_server() -> None:
    config = worker_config(_spec("parameters.token=a-secret-token"))
    assert "a-secret-token" not in repr(config)
    assert {"workflow", "env", "seed", "total_timesteps"} <= config.keys()
    assert not {"runs_folder", "recorders", "compilation_cache", "trust"} & config.keys()
    check_worker_config(config, "127.0.0.1:7000", False)


REMOTE = ["env=remote", "env.obs_space={shape: [2]}", "env.action_space={n: 2}"]


def test_simulators_come_to_workers_and_none_to_the_server() -> None:
    words = [*REMOTE, "serve.max_clients=7", "serve.token=a-secret-token", "serve.bind=127.0.0.1:7099"]
    spec = settle_parameters(spec_of("agent=a2c", "parameters=server", *words), False)
    prepared, config = prepare_training(spec, None), spec.workflow_config()
    assert prepared.workflow.execution.collector is None
    assert prepared.served is not None
    serve = worker_config(spec)["serve"]
    assert serve["max_clients"] == 7
    assert not {"bind", "web", "token", "cert", "key", "profile_dir"} & serve.keys()
    with raises_naming(ValueError, "eval_interval=100", "simulators", "to 0"):
        parameter_service(workflow_from_config({**config, "eval_interval": 100}), spec)


def test_settings_of_simulators_need_simulators() -> None:
    with raises_naming(ValueError, "serve", "env=remote"):
        prepare_training(_spec("serve={max_clients: 7}"), None)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("one address", "got none")),
        (["127.0.0.1:7000", "worker=-1"], ("worker", "-1")),
        (["127.0.0.1:7000", "wroker=1"], ("'wroker'", "'worker'")),
        (["127.0.0.1:7000", "cert=nowhere.pem"], ("cert=nowhere.pem", "PEM")),
    ],
)
def test_wrong_words_for_a_worker(arguments: list[str], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        work_from_arguments(arguments)


def test_a_certificate_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_certificate(tmp_path)[0].rename(tmp_path / "ca.pem")
    with pytest.raises(ServerLost):  # the certificate is accepted, but no server runs
        work_from_arguments(["127.0.0.1:9", "cert=~/ca.pem"])


def test_a_worker_says_where_simulators_come_to_where_there_are_any(tmp_path: Path) -> None:
    with _serving([*SERVER, f"runs_folder={tmp_path}"]) as (_, address):
        output, _ = _worker(address, 0, "serve.bind=127.0.0.1:0").communicate(timeout=120)
        assert not missing_parts(output, "serve", "simulators", "network")
        assert "Traceback" not in output


def test_a_token_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "long-enough")
    assert token_of("env:A_TOKEN", "token") == "long-enough"
    monkeypatch.delenv("A_TOKEN")
    with raises_naming(ValueError, "export A_TOKEN"):
        token_of("env:A_TOKEN", "token")
