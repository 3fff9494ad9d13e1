"""Actor processes produce the numbers of a single process, a fault costs only running episodes, and no
process is left.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evorl.actors import process_pool
from evorl.actors.process_pool import SAME_NUMBERS, ProcessPool, jax_settings
from evorl.actors.supervisor import Supervisor
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.execution.collector import iterate
from tests.actors.test_actor_loop import SUPPORT, after, build
from tests.support.errors import assert_names, raises_naming
from tests.support.small_workflows import assert_close


def test_processes_give_the_same_numbers_whatever_befalls_them() -> None:
    """Collected data equal a single process before and after two actors are ended by signals."""
    expected = after(build("ppo", None), 2)
    workflow = build("ppo", {"kind": "process", "count": 2})
    messages: list[str] = []
    state = iterate(workflow, workflow.init(7), 2, messages.append)[1]
    assert_close(state.agent_state.params, expected.agent_state.params, 1e-5)
    pool = workflow.execution.collector._supervisor._pool
    for number, signal_number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        before = pool._actors[number].process.pid
        os.kill(before, signal_number)
        start = time.monotonic()
        metrics, state = iterate(workflow, state, 2, messages.append)
        assert np.isfinite(metrics.policy_loss).all()
        assert messages[-1].startswith(f"Actor {number} ")
        assert_names(messages[-1], "replaced", "unfinished episodes")
        assert pool._actors[number].process.pid != before
        assert time.monotonic() - start < 60
        assert not os.path.exists(f"/proc/{before}")
    assert "SIGKILL" in messages[0]
    assert "no heartbeat" in messages[1]
    pids = [actor.process.pid for actor in pool._actors.values()]
    workflow.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_one_that_is_stopped_while_it_starts_is_found_as_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor stopped during its start is detected, before Python runs and while it builds environments."""
    monkeypatch.setattr(process_pool, "SILENT_SECONDS", 2.0)  # only the stopped process is silent
    starting_for_long: Any = time.sleep
    pool = ProcessPool(starting_for_long, lambda number: 60.0)
    for number in range(2):
        pool.start(number)
    stopped_at = time.monotonic()
    os.kill(pool._actors[0].process.pid, signal.SIGSTOP)
    while not pool._actors[1].beat.value:
        assert pool.why_dead(1) is None
        time.sleep(0.05)
    os.kill(pool._actors[1].process.pid, signal.SIGSTOP)
    while not (pool.why_dead(0) and pool.why_dead(1)):
        assert time.monotonic() - stopped_at < 40
        time.sleep(0.1)
    assert "no heartbeat for 2 s" in str(pool.why_dead(1))
    pool.close()


def test_a_large_request_to_a_process_that_does_not_read_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    starting_for_long: Any = time.sleep
    pool = ProcessPool(starting_for_long, lambda number: 60.0)
    pool.start(0)
    ends: queue.Queue[str] = queue.Queue()
    send = process_pool._send

    def sent(*args: Any) -> None:
        send(*args)
        ends.put("the request")

    monkeypatch.setattr(process_pool, "_send", sent)
    pool.send(0, (np.zeros(10**7),))
    ends.put("the call")
    assert pool.answers(0.01) == []
    assert pool.why_dead(0) is None
    pool.close()  # ends the process, and so the request
    assert [ends.get(timeout=60) for _ in range(2)] == ["the call", "the request"]


class Length:
    """Worker that answers with the number of bytes of a request."""

    def __init__(self, settings: Any) -> None:
        self.answer = len


def test_requests_of_any_size_arrive() -> None:
    worker: Any = Length  # implements only the part of ``ActorWorker`` that answers
    pool = ProcessPool(worker, lambda number: None)
    pool.start(0)
    for size in (0, 10**3, 10**7):
        pool.send(0, (bytes(size),))
        while not (answers := pool.answers(1.0)):
            assert pool.why_dead(0) is None
        assert answers == [(0, "done", size)]
    pool.close()


def test_what_fails_in_an_actor_is_told_in_a_sentence() -> None:
    env = {"factory": f"{SUPPORT}:Faulty", "fault": "raise"}
    workflow = build("ppo", {"kind": "process", "count": 1}, env)
    with raises_naming(HostEnvError, "actor 0: environment 0", "RuntimeError: the motor is burnt"):
        workflow.learn(key=0)
    workflow.close()


def test_a_rollout_that_takes_too_long_is_asked_of_another_actor() -> None:
    env = {"factory": f"{SUPPORT}:Faulty", "seconds": 0.05}
    workflow = build("ppo", {"kind": "process", "count": 1, "timeout": 0.4}, env, num_envs=1)
    messages: list[str] = []
    _, state = iterate(workflow, workflow.init(0), 1, messages.append)
    assert messages == []  # the first actor compiles, so the pool waits for it
    iterate(workflow, state, 1, messages.append)
    assert len(messages) == 1
    assert_names(messages[0], "actors.timeout", "replaced")
    workflow.close()


def stop_while_sending(pipe: Connection, data: bytes) -> None:
    """Write the first bytes of a message to the pipe, then stop this process as SIGSTOP of a user would."""
    os.write(pipe.fileno(), data[:1000])
    os.kill(os.getpid(), signal.SIGSTOP)


class Stopping:
    """Worker with large answers, whose process stops at the first one; ``settings`` is a file that marks the stop."""

    def __init__(self, settings: Any) -> None:
        self._mark = settings

    def answer(self) -> bytes:
        if not self._mark.exists():
            self._mark.touch()
            setattr(Connection, "_send", stop_while_sending)  # noqa: B010 - type checkers reject the private name
        return bytes(10**6)


def test_an_actor_that_is_stopped_while_it_sends_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "SILENT_SECONDS", 5.0)
    worker: Any = Stopping  # implements only the part of ``ActorWorker`` that answers
    messages: list[str] = []
    actors = Supervisor(ProcessPool(worker, lambda number: tmp_path / "mark"), 1, 60.0, messages.append)
    actors.submit(0, ())
    assert actors.take([0]) == (0, bytes(10**6))
    assert len(messages) == 1
    assert_names(messages[0], "no heartbeat", "replaced")
    actors.close()


class Settings:
    """Worker that answers with settings of JAX in its process."""

    def __init__(self, settings: Any) -> None:
        self.answer = functools.partial(jax_settings, SAME_NUMBERS)


def test_actors_share_settings_of_jax_that_change_numbers() -> None:
    worker: Any = Settings  # implements only the part of ``ActorWorker`` that answers
    with jax.threefry_partitionable(False), jax.default_prng_impl("rbg"):
        expected = jax_settings(SAME_NUMBERS)
        pool = ProcessPool(worker, lambda number: None)
        pool.start(0)
    pool.send(0, ())
    while not (answers := pool.answers(1.0)):
        assert pool.why_dead(0) is None
    assert answers == [(0, "done", expected)]
    assert expected != jax_settings(SAME_NUMBERS)
    pool.close()


WITHOUT_GUARD = """
from evorl.actors.process_pool import ProcessPool

pool = ProcessPool(dict, lambda number: None)
pool.start(0)
while not (reason := pool.why_dead(0)):
    pool.answers(0.1)
print(reason)
"""


def test_a_missing_main_guard_is_named_as_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_GUARD)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "exited with status 1", "if __name__ == '__main__'")


class Parent:
    """Worker that starts a process and answers with its exit code."""

    def __init__(self, settings: Any) -> None:
        pass

    def answer(self) -> int | None:
        process = multiprocessing.get_context("spawn").Process(target=int, daemon=True)
        process.start()
        process.join()
        return process.exitcode


def test_environments_in_a_process_may_start_processes() -> None:
    worker: Any = Parent  # implements only the part of ``ActorWorker`` that answers
    pool = ProcessPool(worker, lambda number: None)
    pool.start(0)
    pool.send(0, ())
    while not (answers := pool.answers(1.0)):
        assert pool.why_dead(0) is None
    assert answers == [(0, "done", 0)]
    pool.close()
