"""A server and its workers: in threads, and in processes that are killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.assembly import workflow_from_config
from evorl.execution.collector import iterate
from evorl.parameter_server.client import ParameterClient
from evorl.parameter_server.frames import CommandRefused
from evorl.parameter_server.training import ServerResult, WorkerResult, serve_parameters, work
from evorl.recorders.row_file import CsvRecorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.serving.serve_settings import ServeSettings
from evorl.serving.training_server import TrainingServer
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.rlx_client import playing
from tests.support.scripted_simulator import CONTINUOUS, remote
from tests.support.small_workflows import ONE_STEP_CONFIG, assert_close, assert_identical, small
from tests.support.waiting import wait_until

CONFIG = {
    **ONE_STEP_CONFIG,
    "workflow": "evorl.algorithms.a2c.A2CWorkflow",
    "env": {"name": "CartPole-v1", "max_episode_steps": 10},
    "total_timesteps": 64 * 12,
}


def _built() -> Workflow:
    return workflow_from_config(CONFIG)


class _Serving:
    """Runs a server in a thread."""

    def __init__(self, workflow: Workflow, **options: Any) -> None:
        self.address, self.result, self._error = "", None, None
        ready = threading.Event()

        def on_ready(address: str) -> None:
            self.address = address
            ready.set()

        def run() -> None:
            try:
                self.result = serve_parameters(workflow, on_ready=on_ready, **options)
            except Exception as error:
                self._error = error
            ready.set()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        ready.wait()

    def end(self) -> ServerResult:
        """Return the result once the server ends."""
        self._thread.join(60)
        if self._error is not None:
            raise self._error
        assert self.result is not None, "the server has not ended"
        return self.result


@contextlib.contextmanager
def _serving(workflow: Workflow, **options: Any) -> Iterator[_Serving]:
    stop = threading.Event()
    serving = _Serving(workflow, should_stop=stop.is_set, **options)
    try:
        yield serving
    finally:
        stop.set()
        serving._thread.join()


@pytest.mark.parametrize("mode", ["fifo", "delay_compensation"])
def test_one_worker_is_the_ordinary_training_to_the_bit(mode: str) -> None:
    workflow = small("a2c", total_timesteps=64 * 5)
    with _serving(workflow, settings={"mode": mode}) as serving:
        worked = work(workflow, serving.address)
        served = serving.end()
    assert (worked.pushes, worked.accepted, worked.step) == (5, 5, 320)
    assert (served.pushes, served.step, served.complete) == (5, 320, True)
    state = workflow.init(0)
    for _ in range(5):
        _, state = iterate(workflow, state, 1)
    assert_identical(served.agent_state, state.agent_state)


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_deltas_over_the_wire(algorithm: str, env: str) -> None:
    """Workers that send deltas equal ordinary training, including target networks."""
    workflow = small(algorithm, env, total_timesteps=64 * 4)
    with _serving(workflow, settings={"send": "delta"}) as serving:
        worked = work(workflow, serving.address)
        served = serving.end()
    state = workflow.init(0)
    for _ in range(worked.pushes):
        _, state = iterate(workflow, state, 1)
    assert_close(served.agent_state.params, state.agent_state.params, 1e-5)


def test_several_workers_end_with_the_training(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "metrics.csv")
    workflow = small("a2c", total_timesteps=64 * 24, log_interval=64 * 8)
    worked = []
    with _serving(workflow, recorder=recorder) as serving:

        def one(number: int) -> None:
            worked.append(work(workflow, serving.address, worker=number))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        served = serving.end()
    recorder.close()
    assert sum(x.accepted for x in worked) == served.pushes == 24
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [row["timesteps"] for row in rows] == ["512", "1024", "1536"]
    assert float(rows[-1]["train/episode_return"]) > 5
    assert all(float(row["train/staleness"]) <= 24 for row in rows)


def test_a_worker_may_go_and_another_come() -> None:
    workflow = small("dqn", updates_per_iteration=1, learning_starts=64, total_timesteps=64 * 6)
    with _serving(workflow) as serving:
        first = work(workflow, serving.address, max_pushes=2)
        second = work(workflow, serving.address, worker=1)
        served = serving.end()
    assert first.pushes == 2
    assert served.pushes == first.accepted + second.accepted
    assert served.complete


WORKER = """
import json, os, sys, time
from evorl.assembly import workflow_from_config
from evorl.parameter_server.training import work
config, address, number, hurry = sys.argv[1:]
workflow = workflow_from_config(json.loads(config))
# Slowly, so that the one that starts first does not do it all.
work(workflow, address, worker=int(number), should_stop=lambda: os.path.exists(hurry) or time.sleep(0.2))
work(workflow, address, worker=int(number))
"""


def test_a_training_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    """If one of two worker processes is killed, the other finishes the training."""
    config, hurry = {**CONFIG, "total_timesteps": 64 * 120}, tmp_path / "hurry"
    with _serving(workflow_from_config(config)) as serving, contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", WORKER, json.dumps(config), serving.address]
        workers = [
            stack.enter_context(subprocess.Popen([*command, str(i), str(hurry)], stderr=subprocess.PIPE, text=True))
            for i in range(2)
        ]
        stack.callback(lambda: [worker.kill() for worker in workers])
        with ParameterClient(serving.address) as client:
            while client.n_step()["workers"] < 2 and all(worker.poll() is None for worker in workers):
                time.sleep(0.02)
        workers[1].kill()
        hurry.touch()
        _, output = workers[0].communicate(timeout=60)
        assert workers[0].returncode == 0, output
        served = serving.end()
        assert workers[1].wait() == -signal.SIGKILL
    assert served.complete
    assert served.step == 64 * served.pushes == config["total_timesteps"]


def test_a_signal_saves_and_the_next_server_goes_on(tmp_path: Path) -> None:
    """A signal saves a checkpoint; a new server continues from it with the worker that waited."""
    checkpointer = RunCheckpointer(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def worker_then_signal(address: str) -> None:
        def run() -> None:
            work(_built(), address, max_pushes=5)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=run).start()

    stopped = serve_parameters(_built(), checkpointer=checkpointer, on_ready=worker_then_signal)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (stopped.step, stopped.pushes, stopped.complete) == (320, 5, False)
    assert checkpointer.steps[-1] == 5
    with _serving(_built(), checkpointer=checkpointer) as serving:
        with ParameterClient(serving.address) as client:
            standing, body = client.pull()
        assert standing["step"] == 320
        kept = np.frombuffer(body, np.float32)
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(stopped.agent_state.params)]
        np.testing.assert_array_equal(kept, np.concatenate(leaves))
        work(_built(), serving.address, worker=1)
        assert serving.end().step == CONFIG["total_timesteps"]


def test_a_worker_of_another_network_is_refused() -> None:
    other = small("a2c", agent={"network": {"torso": [9]}})
    with _serving(_built()) as serving, raises_naming(CommandRefused, "network", "algorithm"):
        work(other, serving.address)


def test_a_worker_needs_the_token() -> None:
    with _serving(_built(), token="sesame") as serving:
        with raises_naming(CommandRefused, "token"):
            work(_built(), serving.address, token="open")
        assert work(_built(), serving.address, token="sesame", max_pushes=1).accepted == 1


def test_an_open_address_without_a_token_is_refused() -> None:
    with raises_naming(ValueError, "token", "set a token"):
        serve_parameters(_built(), "0.0.0.0:0", should_stop=lambda: True)


def test_several_gradient_steps_are_refused_at_the_worker() -> None:
    workflow = small("ppo")
    with _serving(workflow) as serving, raises_naming(ValueError, "send=delta"):
        work(workflow, serving.address)


def test_a_full_disk_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space is left on its disk")

    checkpointer = RunCheckpointer(tmp_path)
    monkeypatch.setattr(checkpointer, "save", full)
    serving = _Serving(_built(), checkpointer=checkpointer)
    with ParameterClient(serving.address) as client, raises_naming(CommandRefused, "server has failed"):
        client.checkpoint()
    with raises_naming(OSError, "no space is left"):
        serving.end()


@contextlib.contextmanager
def _collecting(workflow: Workflow, address: str, number: int) -> Iterator[tuple[str, list[WorkerResult]]]:
    """Run a worker with simulators in a thread; yield the address, and a list that receives its result."""
    done: list[WorkerResult] = []
    ready = threading.Event()
    with contextlib.closing(TrainingServer(workflow, ServeSettings(bind="127.0.0.1:0"))) as collector:

        def run() -> None:
            done.append(work(workflow, address, worker=number, collector=collector, message=lambda _: ready.set()))

        thread = threading.Thread(target=run)
        thread.start()
        assert ready.wait(60)
        assert collector._thread is not None
        yield collector._thread.addresses[0], done
        thread.join(60)
        assert not thread.is_alive(), "it waits for simulators of a training that is over"


def test_simulators_come_to_several_workers_one_of_which_they_leave() -> None:
    """All workers end with the training, including one without simulators."""
    workflow = remote("a2c", CONTINUOUS, {"num_envs": 2, "rollout_length": 5, "total_timesteps": 10 * 40})
    with _serving(workflow) as serving, contextlib.ExitStack() as stack:
        (one, of_one), (two, of_two) = (
            stack.enter_context(_collecting(workflow, serving.address, i)) for i in range(2)
        )
        with ParameterClient(serving.address) as client, playing(two, 1, 2):
            wait_until(lambda: client.n_step()["pushes"] >= 3, 60.0)
        with playing(one, 3, 4) as clients:
            served = serving.end()
        assert all(each.failure is None for each in clients)
        stack.close()
    assert served.complete
    assert served.step == 10 * served.pushes >= 400
    assert of_one[0].accepted + of_two[0].accepted == served.pushes
    assert 3 <= of_two[0].accepted < served.pushes
