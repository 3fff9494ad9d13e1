"""Actors: the numbers of one process, faults that cost nothing but running episodes, and no process left behind."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from evorl.actors import supervisor
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.workflows.assembly import workflow_from_config
from evorl.workflows.workflow import Workflow
from tests.conformance.env import assert_trees_equal
from tests.envs.host.test_bridge import CASES, NETWORK, SUPPORT

IMPALA = {"num_envs": 4, "rollout_length": 8, "num_minibatches": 1}


def build(algorithm: str, actors: dict | None, env: dict | None = None, **changes: Any) -> Workflow:
    cls, _, function, settings = {**CASES, "impala": ("IMPALAWorkflow", "", "cartpole", IMPALA)}[algorithm]
    env = env or {"factory": f"{SUPPORT}:{function}"}
    path = f"evorl.algorithms.{algorithm}.{cls}"
    return workflow_from_config({"workflow": path, "env": env, "actors": actors, **settings, **NETWORK, **changes})


def after(workflow: Workflow, num_updates: int = 5) -> Any:
    state = workflow.iterate(workflow.init(7), num_updates)[1]
    workflow.close()
    return state


@pytest.mark.parametrize("algorithm", CASES)
def test_actors_that_are_waited_for_give_the_numbers_of_one_process(algorithm: str) -> None:
    expected = after(build(algorithm, None))
    state = after(build(algorithm, {"kind": "inline", "count": 2}))
    assert_trees_equal(state.agent_state.params, expected.agent_state.params, 1e-5)
    assert_trees_equal(state.env_state.obs, expected.env_state.obs, 1e-5)


def test_environments_in_jax_may_have_actors_too() -> None:
    env = {"name": "gymnax/CartPole-v1"}
    expected = after(build("ppo", None, env, env_chunk=None))
    state = after(build("ppo", {"kind": "inline", "count": 2}, env, env_chunk=None))
    assert_trees_equal(state.agent_state.params, expected.agent_state.params, 1e-5)


def test_processes_give_the_same_numbers_whatever_befalls_them() -> None:
    """Signals end two of them in turn; before that and after, what they collect is as that of one process."""
    expected = after(build("ppo", None), 2)
    workflow = build("ppo", {"kind": "process", "count": 2})
    told: list[str] = []
    state = workflow.iterate(workflow.init(7), 2, told.append)[1]
    assert_trees_equal(state.agent_state.params, expected.agent_state.params, 1e-5)
    pool = workflow.actors._supervisor._pool  # pyright: ignore[reportOptionalMemberAccess]
    for number, what in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        before = pool._actors[number].process.pid
        os.kill(before, what)
        start = time.monotonic()
        metrics, state = workflow.iterate(state, 2, told.append)
        assert np.isfinite(metrics.policy_loss).all()
        assert told[-1].startswith(f"Actor {number} ")
        assert "replaced; its running episodes are dropped" in told[-1]
        assert pool._actors[number].process.pid != before
        assert time.monotonic() - start < 60
        assert not os.path.exists(f"/proc/{before}")
    assert "SIGKILL" in told[0]
    assert "no sign of life" in told[1]
    pids = [actor.process.pid for actor in pool._actors.values()]
    workflow.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("algorithm", ["impala", "dqn"])
def test_actors_that_are_not_waited_for_are_never_too_old(algorithm: str) -> None:
    actors = {"kind": "inline", "count": 4, "mode": "async", "max_lag": 3}
    workflow = build(algorithm, actors, num_envs=4)
    metrics, state = workflow.iterate(workflow.init(0), 12)
    assert metrics.policy_lag.shape == (12,)
    assert metrics.policy_lag.max() == 3
    assert int(state.iterations) == 12
    workflow.close()


def test_what_fails_in_an_actor_is_told_in_a_sentence() -> None:
    env = {"factory": f"{SUPPORT}:faulty", "fault": "raise"}
    workflow = build("ppo", {"kind": "process", "count": 1}, env)
    with pytest.raises(HostEnvError, match="actor 0: environment 0 failed in step: RuntimeError: the motor is burnt"):
        workflow.learn(key=0)
    workflow.close()


class Dying:
    """A pool whose actors always die."""

    def __init__(self) -> None:
        self.started = 0

    def start(self, number: int) -> None:
        self.started += 1

    def send(self, number: int, request: Any) -> None:
        pass

    def answers(self, timeout: float) -> list:
        return []

    def why_dead(self, number: int) -> str:
        return "ended by signal SIGSEGV"

    def stop(self, number: int) -> None:
        pass


def test_an_actor_that_dies_again_and_again_ends_the_run() -> None:
    told: list[str] = []
    pool = Dying()
    actors = supervisor.Supervisor(pool, 1, 60.0, told.append)  # pyright: ignore[reportArgumentType]
    actors.submit(0, ())
    with pytest.raises(HostEnvError, match="actor 0 ended by signal SIGSEGV, 6 times in a row without a rollout"):
        actors.take([0])
    assert len(told) == supervisor.MOST_DEATHS == pool.started - 1


def test_a_rollout_that_takes_too_long_is_asked_of_another_actor() -> None:
    env = {"factory": f"{SUPPORT}:faulty", "seconds": 0.05}
    workflow = build("ppo", {"kind": "process", "count": 1, "timeout": 0.4}, env, num_envs=1)
    told: list[str] = []
    _, state = workflow.iterate(workflow.init(0), 1, told.append)
    assert told == []  # the first one compiles, and is waited for
    workflow.iterate(state, 1, told.append)
    assert len(told) == 1
    assert "did not answer for" in told[0]
    assert "(actors.timeout): replaced" in told[0]
    workflow.close()
