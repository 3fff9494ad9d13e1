"""Simulators as vector environments: the numbers of JAX environments, by loop and by callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.assembly import workflow_from_config
from evorl.envs import create_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.evaluators import Evaluator
from evorl.execution.collector import iterate
from evorl.types import PyTreeDict
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.host_envs import MADE, Faulty
from tests.support.small_workflows import assert_close

SUPPORT = "tests.support.host_envs"
NETWORK = {"agent": {"network": {"torso": [16]}}}
OFF_POLICY = {"num_envs": 2, "learning_starts": 8, "batch_size": 16, "updates_per_iteration": 2, "replay_capacity": 256}
# Agent, its environment as JAX and host version, and settings.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "ppo": ("PPOWorkflow", "CartPole-v1", "cartpole", {"num_envs": 4, "rollout_length": 16, "num_minibatches": 2}),
    "dqn": ("DQNWorkflow", "CartPole-v1", "cartpole", OFF_POLICY | {"rollout_length": 8}),
    "sac": ("SACWorkflow", "Pendulum-v1", "pendulum", OFF_POLICY | {"rollout_length": 4}),
}


def trained(algorithm: str, host: str | None, num_updates: int = 5, **changes: Any) -> tuple[Workflow, Any, PyTreeDict]:
    """Train for some iterations in a JAX environment (``host`` is ``None``) or in the same one on the host."""
    cls, name, function, settings = CASES[algorithm]
    env = {"name": f"gymnax/{name}"} if host is None else {"factory": f"{SUPPORT}:{function}", "host": host}
    path = f"evorl.algorithms.{algorithm}.{cls}"
    workflow = workflow_from_config(
        {"workflow": path, "env": env, "eval_episodes": 2, "env_chunk": None, **settings, **NETWORK, **changes}
    )
    metrics, state = iterate(workflow, workflow.init(7), num_updates)
    return workflow, state, jax.tree.map(lambda x: x[:num_updates], metrics)


@pytest.fixture(scope="module", params=CASES)
def on_device(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, trained(request.param, None)[1]


@pytest.fixture(scope="module")
def on_host() -> Iterator[Callable[[str, str], tuple[Workflow, Any]]]:
    """Return a function that returns workflow and state per algorithm and host mode, trained once for all tests."""
    found: dict[tuple[str, str], tuple[Workflow, Any]] = {}

    def of(algorithm: str, host: str) -> tuple[Workflow, Any]:
        if (algorithm, host) not in found:
            found[algorithm, host] = trained(algorithm, host)[:2]
        return found[algorithm, host]

    yield of
    for workflow, _ in found.values():
        workflow.close()


@pytest.mark.parametrize("host", ["loop", "callback"])
def test_the_numbers_are_those_of_the_same_environment_in_jax(
    on_device: tuple[str, Any], on_host: Callable, host: str
) -> None:
    algorithm, expected = on_device
    workflow, state = on_host(algorithm, host)
    assert workflow.collector.is_one_program == (host == "callback")
    assert_close(state.agent_state.params, expected.agent_state.params, 1e-5)
    assert_close(state.env_state.obs, expected.env_state.obs, 1e-5)
    np.testing.assert_array_equal(state.env_state._internal.episode, expected.env_state._internal.episode)


@pytest.mark.parametrize("host", ["loop", "callback"])
def test_seeds_side_by_side_have_environments_of_their_own(on_host: Callable, host: str) -> None:
    workflow, both, _ = trained("ppo", host, num_seeds=2)
    alone, of_seed_7 = on_host("ppo", host)
    of_seed_8 = iterate(alone, alone.init(8), 5)[1]
    for i, state in enumerate((of_seed_7, of_seed_8)):
        params = jax.tree.map(lambda x, i=i: x[i], both.agent_state.params)
        assert_close(params, state.agent_state.params, 1e-5)
    assert np.isfinite(workflow.evaluate(both).episode_return).all()
    workflow.close()


def simulated(parallel: int = 3, function: str = "cartpole", **options: Any) -> Any:
    return create_env({"factory": f"{SUPPORT}:{function}"}, parallel=parallel, **options)


def test_an_episode_is_followed_by_the_start_of_its_counterpart() -> None:
    """Autoreset equals the JAX version, with all wrappers, including the true next observation."""
    options = {"history": 2, "reward_scale": 0.5, "max_episode_steps": 6}
    host = simulated(**options)
    jax_env = create_env("gymnax/CartPole-v1", parallel=3, **options)
    states = [env.reset(jax.random.key(1)) for env in (host, jax_env)]
    names, ends = states[1].info.keys(), 0
    for step in range(15):
        states = [
            env.step(state, jnp.asarray([0, 1, step % 2])) for env, state in zip((host, jax_env), states, strict=True)
        ]
        for name in ("obs", "reward", "done"):
            assert_close(*(getattr(state, name) for state in states), 1e-5)
        infos = [{name: state.info[name] for name in names} for state in states]
        assert_close(*infos, 1e-5)
        ends += int(states[0].done.sum())
    assert ends >= 6
    host.close()


def test_an_older_state_is_refused_in_words() -> None:
    env = simulated()
    start = env.reset(jax.random.key(0))
    env.step(start, jnp.zeros(3, jnp.int32))
    with raises_naming(jax.errors.JaxRuntimeError, "advanced beyond"):
        jax.block_until_ready(env.step(start, jnp.zeros(3, jnp.int32)))
    assert not env.is_live(start)
    again = env.next_episodes(start)
    assert_close(again.obs, start.obs)  # the episode had no step yet
    assert env.is_live(again)
    env.close()


def test_next_episodes_are_those_whose_turn_it_is() -> None:
    env, other = simulated(max_episode_steps=4), simulated(max_episode_steps=4)
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(3, jnp.int32))
    restarted = other.next_episodes(state)
    for _ in range(3):
        state = env.step(state, jnp.zeros(3, jnp.int32))
    assert state.done.all()
    assert_close(restarted.obs, state.obs)
    env.close()
    other.close()


def test_a_partial_reset_starts_the_rows_it_names() -> None:
    env = simulated()
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(3, jnp.int32))
    mask = jnp.asarray([False, True, False])
    fresh = env.partial_reset(state, mask, jax.random.key(5))
    np.testing.assert_array_equal(fresh.info.steps, [1, 0, 1])
    assert_close(fresh.obs[0], state.obs[0])
    assert (fresh.obs[1] != state.obs[1]).any()
    after = env.step(fresh, jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(after.info.steps, [2, 1, 2])
    env.close()


def test_evaluation_plays_whole_episodes_and_ended_rows_freeze(on_host: Callable) -> None:
    env = simulated(parallel=4, function="cartpole", autoreset_mode="disabled", max_steps=30)
    workflow, state = on_host("ppo", "callback")
    agent_state = state.agent_state
    evaluator = Evaluator(env=env, agent_fn=workflow.agent.evaluate_actions, max_episode_steps=30)
    seen = evaluator.evaluate(agent_state, jax.random.key(3), 6)
    jax_env = create_env("gymnax/CartPole-v1", parallel=4, autoreset_mode="disabled", max_episode_steps=30)
    expected = evaluator.replace(env=jax_env).evaluate(agent_state, jax.random.key(3), 6)
    np.testing.assert_array_equal(seen.episode_lengths, expected.episode_lengths)
    np.testing.assert_allclose(seen.episode_returns, expected.episode_returns, rtol=1e-5)
    env.close()


@pytest.fixture(scope="module", params=["loop", "callback"])
def of_faulty(request: pytest.FixtureRequest) -> Iterator[tuple[Workflow, list[Faulty]]]:
    """Return a workflow, compiled once for all faults, and its environments."""
    MADE.clear()
    workflow = workflow_from_config(
        {
            "workflow": "evorl.algorithms.ppo.PPOWorkflow",
            "env": {"factory": f"{SUPPORT}:faulty_when_told", "host": request.param},
            "eval_interval": 0,
            **CASES["ppo"][3],
            **NETWORK,
        }
    )
    yield workflow, MADE
    workflow.close()


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("raise", ("environment 0", "step 5", "RuntimeError: the motor is burnt")),
        ("nan", ("environment 0", "observation", "not finite", "step 5")),
        ("reward", ("environment 0", "reward", "not finite", "step 5")),
        (
            "shape",
            ("environment 0", "observation", "shape [3]", "got [4]", "step 5"),
        ),
    ],
)
def test_a_faulty_simulator_is_named_in_a_sentence(
    of_faulty: tuple[Workflow, list[Faulty]], fault: str, parts: tuple[str, ...]
) -> None:
    workflow, envs = of_faulty
    for env in envs:
        env.fault, env.steps = fault, 0
    with raises_naming(HostEnvError, *parts):
        workflow.learn(key=0)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"autoreset_mode": "fast"}, ("autoreset_mode=fast", "JAX environment")),
        ({"host": "lop"}, ("'lop'", "'loop'")),
    ],
)
def test_what_simulators_cannot_have_is_refused_in_words(options: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        simulated(**options)


def test_actions_are_repeated_by_simulators_of_gymnasium_only() -> None:
    """Other simulators state their own number of steps per action."""
    with raises_naming(ValueError, "action_repeat", "JAX or Gymnasium environment"):
        create_env({"factory": "tests.support.interop_parts:make_counting"}, parallel=2, action_repeat=2)


def test_simulators_serve_one_device() -> None:
    cls, _, function, settings = CASES["ppo"]
    config = {"workflow": f"evorl.algorithms.ppo.{cls}", "env": {"factory": f"{SUPPORT}:{function}"}, **settings}
    with raises_naming(ValueError, "devices=2", "simulators on the host"):
        workflow_from_config({**config, "devices": 2})


@pytest.mark.parametrize("limit", ["max_cycles", "max_episode_steps"])
def test_a_time_limit_does_not_truncate_agents_that_have_terminated(limit: str) -> None:
    env = create_env({"library": "pettingzoo", "name": "tests.envs.test_pettingzoo:WalkGame", limit: 5}, parallel=6)
    env_state = env.reset(jax.random.key(0))
    for step in range(1, 11):
        env_state = env.step(env_state, jnp.ones(6, jnp.int32))
        at_limit = step % 5 == 0
        assert env_state.info.termination.tolist() == [at_limit, False, False] * 2
        assert env_state.info.truncation.tolist() == [False, at_limit, at_limit] * 2
    env.close()
