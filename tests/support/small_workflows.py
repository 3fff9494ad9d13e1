"""Small workflows shared by many tests, which therefore share compiled programs, and comparison of states."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import Agent, AgentState
from evorl.agents.random_actions import random_actions
from evorl.envs.vector import VectorEnv
from evorl.execution import programs
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, PyTreeNode, State
from evorl.workflows.workflow import Workflow

NUM_ENVS = 8
EPISODE_STEPS = 10  # evaluations are short, and many episodes end
POP_SIZE = 6
RUN_CONFIG = {"devices": 1, "env_chunk": None, "eval_episodes": 4, "eval_interval": 0}  # settings of whole runs
_ONE_LEARNER = {**RUN_CONFIG, "num_envs": NUM_ENVS, "agent": {"network": {"torso": [8]}}}
ONE_STEP_CONFIG = {
    **_ONE_LEARNER,
    "rollout_length": 8,
    "optimizer": {"learning_rate": 1e-3},  # no schedule, so that it is searchable
    "total_timesteps": 64 * 20,
}
PPO_CONFIG = {**ONE_STEP_CONFIG, "num_epochs": 2, "num_minibatches": 2}
SAC_CONFIG = {
    **_ONE_LEARNER,
    "rollout_length": 1,
    "updates_per_iteration": 2,
    "batch_size": 16,
    "learning_starts": 16,
    "replay_capacity": 128,
    "total_timesteps": 8 * 20,
}
BATCH_RENORM = {"torso": ["batch_renorm", 8, "batch_renorm"]}
QUALITY_DIVERSITY_CONFIG = {
    **RUN_CONFIG,
    "pop_size": 8,
    "descriptors": ["next_obs.0", "next_obs.2"],
    "archive": {"name": "grid", "low": [-1.0, -8.0], "high": [1.0, 8.0], "bins": [4, 4]},
    "fitness_offset": -200.0,
    "variation": {"iso_sigma": 0.1, "line_sigma": 0.5},
    "total_timesteps": 8 * EPISODE_STEPS * 20,
}
ENVS = ("CartPole-v1", "Pendulum-v1")


def contract_of(algorithm: str) -> Any:
    """Return the contract class of an algorithm's test file, which contains its smallest config."""
    return importlib.import_module(f"tests.algorithms.test_{algorithm}").TestContract


def small(algorithm: str, env: str | Mapping[str, Any] = "CartPole-v1", **changes: Any) -> Workflow:
    """Build a workflow of ``algorithm`` with tiny networks and some config entries changed."""
    env = {"name": env, "max_episode_steps": EPISODE_STEPS} if isinstance(env, str) else env
    return contract_of(algorithm).make(env, **changes)


def inner_config(algorithm: str) -> dict[str, Any]:
    """Return the config of an algorithm as part of another's, without settings of whole runs."""
    contract = contract_of(algorithm)
    settings = {name: value for name, value in contract.SMALL.items() if name not in RUN_CONFIG}
    return {"workflow": f"{contract.workflow.__module__}.{contract.workflow.__name__}", **settings}


def one_iteration(workflow: Workflow, state: State) -> tuple[PyTreeDict, State]:
    """Run one iteration with the program of training; the given state stays usable."""
    metrics, state = programs.iterate_program(workflow, jax.tree.map(jnp.copy, state), 1)
    return jax.tree.map(lambda x: x[0], metrics), state


@functools.partial(jax.jit, static_argnums=(0, 1))
def transitions(env: VectorEnv, num_rows: int) -> SampleBatch:
    """Return random transitions ``[N, ...]`` in the format of off-policy algorithms: some terminated,
    weights unequal.
    """
    obs_key, next_obs_key, action_key, reward_key, end_key = jax.random.split(jax.random.key(2), 5)
    obs_shape = (num_rows, *env.obs_space.zeros().shape)
    ended = jnp.arange(num_rows) % 3 == jax.random.randint(end_key, (), 0, 3)
    return SampleBatch(
        obs=jax.random.normal(obs_key, obs_shape),
        actions=random_actions(env.action_space, action_key, num_rows),
        rewards=jax.random.normal(reward_key, (num_rows,)),
        next_obs=jax.random.normal(next_obs_key, obs_shape),
        extras=PyTreeDict(discounts=0.9 * (1.0 - ended), weights=jnp.linspace(0.5, 1.0, num_rows)),
    )


def fresh_state(agent: Agent, env: VectorEnv) -> AgentState:
    """Return an initial state of the agent, computed by one program."""
    return jax.jit(lambda: agent.init(env.obs_space, env.action_space, jax.random.key(0)))()


def moved_apart(agent_state: AgentState, *names: str) -> AgentState:
    """Add noise to some of the agent's parameters, so that they differ from their copies."""

    @jax.jit
    def moved(params: PyTreeDict) -> PyTreeDict:
        return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(1), x.shape), params)

    changed = moved(PyTreeDict({name: agent_state.params[name] for name in names}))
    return agent_state.replace(params=agent_state.params.replace(**changed))


def arrays(tree: Any) -> dict[str, np.ndarray]:
    """Return every leaf by its path, PRNG keys as their data."""
    return {jax.tree_util.keystr(path): _array(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _array(leaf: Any) -> np.ndarray:
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_identical(actual: Any, expected: Any) -> None:
    """Assert that every leaf is bitwise equal."""
    actual, expected = arrays(actual), arrays(expected)
    assert actual.keys() == expected.keys()
    different = [path for path, value in expected.items() if not np.array_equal(actual[path], value, equal_nan=True)]
    assert not different, f"{len(different)} of {len(expected)} leaves differ: {different[:6]}"


def assert_close(actual: Any, expected: Any, tolerance: float = 0.0) -> None:
    """Assert that every leaf is equal up to ``tolerance``, absolute and relative."""
    actual, expected = arrays(actual), arrays(expected)
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=tolerance, atol=tolerance, err_msg=path)


def nodes_of(node: PyTreeNode) -> Iterator[PyTreeNode]:
    """Yield a node and all nodes among its data fields."""
    yield node
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, PyTreeNode) and not field.metadata.get("static"):
            yield from nodes_of(value)


def static_fractions(node: PyTreeNode) -> set[str]:
    """Return the names of static fields that are fractions."""
    found = set()
    for part in nodes_of(node):
        hints = typing.get_type_hints(type(part))
        for field in dataclasses.fields(part):
            if field.metadata.get("static") and float in (hints[field.name], *typing.get_args(hints[field.name])):
                found.add(field.name)
    return found
