"""Training iterations with actors equal a single process, or use policies within the permitted age."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.assembly import workflow_from_config
from evorl.execution.collector import iterate
from evorl.workflows.workflow import Workflow
from tests.envs.host.test_bridge import CASES, NETWORK, SUPPORT
from tests.support.errors import raises_naming
from tests.support.small_workflows import assert_close

IMPALA = {"num_envs": 4, "rollout_length": 8, "num_minibatches": 1}


def build(algorithm: str, actors: dict | None, env: dict | None = None, **changes: Any) -> Workflow:
    cls, _, function, settings = {**CASES, "impala": ("IMPALAWorkflow", "", "cartpole", IMPALA)}[algorithm]
    env = env or {"factory": f"{SUPPORT}:{function}"}
    path = f"evorl.algorithms.{algorithm}.{cls}"
    return workflow_from_config({"workflow": path, "env": env, "actors": actors, **settings, **NETWORK, **changes})


def after(workflow: Workflow, num_updates: int = 5) -> Any:
    state = iterate(workflow, workflow.init(7), num_updates)[1]
    workflow.close()
    return state


@pytest.mark.parametrize("algorithm", CASES)
def test_actors_that_are_waited_for_give_the_numbers_of_one_process(algorithm: str) -> None:
    expected = after(build(algorithm, None))
    state = after(build(algorithm, {"kind": "inline", "count": 2}))
    assert_close(state.agent_state.params, expected.agent_state.params, 1e-5)
    assert_close(state.env_state.obs, expected.env_state.obs, 1e-5)


def test_environments_in_jax_may_have_actors_too() -> None:
    env = {"name": "gymnax/CartPole-v1"}
    expected = after(build("ppo", None, env, env_chunk=None))
    state = after(build("ppo", {"kind": "inline", "count": 2}, env, env_chunk=None))
    assert_close(state.agent_state.params, expected.agent_state.params, 1e-5)


@pytest.mark.parametrize("algorithm", ["impala", "dqn"])
def test_actors_that_are_not_waited_for_are_never_too_old(algorithm: str) -> None:
    actors = {"kind": "inline", "count": 4, "mode": "async", "max_lag": 3}
    workflow = build(algorithm, actors, num_envs=4)
    metrics, state = iterate(workflow, workflow.init(0), 12)
    assert metrics.policy_lag.shape == (12,)
    assert metrics.policy_lag.max() == 3
    assert int(state.iterations) == 12
    workflow.close()


def test_episodes_of_an_actor_that_was_replaced_end_in_the_replay_buffer() -> None:
    """The learner's other environments, whose actor lives, continue theirs."""
    workflow = build("dqn", {"kind": "inline", "count": 2}, rollout_length=4)
    state = iterate(workflow, workflow.init(0), 1)[1]
    assert not state.replay_state.data.dones[3].any()
    pool = workflow.execution.collector._supervisor._pool
    pool.stop(0)
    pool.start(0)
    state = iterate(workflow, state, 1)[1]
    assert state.replay_state.data.dones[3].tolist() == [True, False]
    workflow.close()


def test_environments_that_actors_cannot_share_are_refused_when_they_are_built() -> None:
    pair = {"factory": "tests.support.toy_envs:TugOfWar", "max_episode_steps": 5}
    with raises_naming(ValueError, "num_envs=6", "agents", "actors.count=2", "multiple of 4"):
        build("ppo", {"kind": "inline", "count": 2}, pair, num_envs=6, num_minibatches=1)
    with raises_naming(ValueError, "2 agents", "per actor in async mode", "3 rows"):
        build("impala", {"kind": "inline", "count": 2, "mode": "async"}, pair, num_envs=6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_compiled_simulators_have_no_actors(mode: str) -> None:
    env = {"name": "envpool/CartPole-v1", "host": "compiled"}
    with raises_naming(ValueError, "env.host=compiled", "actors", "env.host=loop"):
        build("impala", {"kind": "inline", "count": 2, "mode": mode}, env)


def test_processes_of_simulators_inside_those_of_actors_are_refused() -> None:
    env = {"name": "gymnasium/CartPole-v1", "vectorization": "async"}
    with raises_naming(ValueError, "env.vectorization=async", "would outlive", "in_process", "actors.count"):
        build("ppo", {"kind": "process", "count": 2}, env)
