"""Portable policies in memory: of untrained small workflows, and of plain functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl.agent import AgentState
from evorl.envs.space import Box
from evorl.envs.vector import VectorEnv
from evorl.export.artifacts import policy_graph
from evorl.export.numpy_file import numpy_text
from evorl.export.portable_policy import Port, PortablePolicy, portable_policy
from evorl.export.stored_policy import StoredPolicy, in_float32
from evorl.ops.normalization import update_statistics
from evorl.reports.seed_choice import SeedChoice
from tests.support.small_workflows import fresh_state, small
from tests.support.toy_envs import CHOICES, MASKED

VERSIONS = {"versions": {"evorl": "1.2.3"}}
CONVOLUTIONS = {"torso": [{"conv": {"filters": 4, "size": 3, "stride": 2, "border": "same"}}, "flatten", 8]}
SMALL_GRU = {"torso": [8], "recurrent": {"name": "gru", "size": 6}}
# Exported policies: algorithm, environment, changed settings.
POLICIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo_discrete": ("ppo", "CartPole-v1", {}),
    "ppo_normalized": ("ppo", "Pendulum-v1", {"agent": {"network": {"torso": [8]}, "normalize_obs": True}}),
    "ppo_gru_history": (
        "ppo",
        {"name": "Pendulum-v1", "history": 3, "observed": [0, 2]},
        {"agent": {"network": SMALL_GRU}},
    ),
    "sac": ("sac", "Pendulum-v1", {}),
    "td3": ("td3", "Pendulum-v1", {}),
    "dqn": ("dqn", "CartPole-v1", {}),
    "ppo_lru": ("ppo", "Pendulum-v1", {"agent": {"network": {"torso": [8], "recurrent": {"name": "lru", "size": 6}}}}),
    "ppo_min_gru": (
        "ppo",
        "CartPole-v1",
        {"agent": {"network": {"torso": [8], "recurrent": {"name": "min_gru", "size": 6}, "shared": True}}},
    ),
    "r2d2": ("r2d2", "CartPole-v1", {"agent": {"network": SMALL_GRU}}),
    "recurrent_sac": ("recurrent_sac", "Pendulum-v1", {"agent": {"network": SMALL_GRU, "normalize_obs": True}}),
    "ppo_gtrxl": (
        "ppo",
        "Pendulum-v1",
        {
            "agent": {
                "network": {
                    "torso": [8],
                    "recurrent": {"name": "gtrxl", "size": 6, "num_heads": 2, "num_layers": 2, "window": 3},
                }
            }
        },
    ),
    "dqn_convolutional": ("dqn", "Breakout-MinAtar", {"agent": {"network": CONVOLUTIONS}}),
    "openes": ("neuroevolution", "CartPole-v1", {}),
    "masked": ("ppo", {"factory": MASKED, "max_episode_steps": 5}, {}),
    "choices": ("ppo", {"factory": CHOICES, "max_episode_steps": 5, "flatten_obs": True}, {}),
    "choice_alone": (
        "dqn",
        {"factory": CHOICES, "max_episode_steps": 5},
        {"agent": {"network": {"torso": [8]}, "obs_key": "grid"}},
    ),
    "goals": ("sac", {"name": "goal/point_maze", "max_episode_steps": 5}, {}),
}


def stored(name: str, folder: Path, sample: bool = False) -> StoredPolicy:
    """Return one of ``POLICIES`` as if it belonged to a run in ``folder``."""
    policy, env = _made(name, sample)
    return StoredPolicy(
        policy, folder, env, {}, env.title or "", POLICIES[name][0], 64, "latest", sample, SeedChoice(0, ""), ()
    )


@functools.cache
def _made(name: str, sample: bool) -> tuple[PortablePolicy, VectorEnv]:
    algorithm, env, changes = POLICIES[name]
    workflow = small(algorithm, env, **changes)
    agent_state = with_statistics(fresh_state(workflow.agent, workflow.env))
    return portable_policy(workflow.agent, agent_state, workflow.env, sample), workflow.env


def stored_in_bfloat16(folder: Path) -> StoredPolicy:
    """A recurrent policy whose networks compute in bfloat16, as if it were of a run in ``folder``."""
    workflow = small("ppo", "Pendulum-v1", agent={"network": {**SMALL_GRU, "dtype": "bfloat16"}})
    agent_state = fresh_state(workflow.agent, workflow.env)
    policy = portable_policy(workflow.agent, agent_state, workflow.env)
    agent = in_float32(workflow.agent)
    assert agent is not None
    widened = portable_policy(agent, agent_state, workflow.env)
    about = (folder, workflow.env, {}, "", "PPO", 64, "latest", False, SeedChoice(0, ""), ())
    return StoredPolicy(policy, *about, widened)


def with_statistics(agent_state: AgentState) -> AgentState:
    """Return the agent state with statistics of some observations, if it has a normalizer."""
    statistics = agent_state.obs_preprocessor_state
    if statistics is None:
        return agent_state
    rng = np.random.default_rng(5)
    seen = jax.tree.map(lambda x: 2.0 + rng.standard_normal((50, *x.shape), np.float32), statistics.mean)
    return agent_state.replace(obs_preprocessor_state=update_statistics(statistics, seen))


def portable_function(
    fn: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], dtype: Any = np.float32
) -> PortablePolicy:
    """Convert a function of one observation to a policy without memory."""
    out = jax.eval_shape(fn, jax.ShapeDtypeStruct(shape, dtype))
    space = Box(-np.inf, np.inf, out.shape) if out.dtype == np.float32 else Box(-100, 100, out.shape, np.int32)
    seen = Port("obs", shape, np.dtype(dtype))
    obs_space = Box(-2, 2, shape, dtype)
    return PortablePolicy(
        (seen,), (), (), (), (Port("action", out.shape, np.dtype(out.dtype)),), lambda x: (fn(x),), obs_space, space
    )


def numpy_step(policy: PortablePolicy) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]]:
    """Return the step function of the policy's NumPy file."""
    module: dict[str, Any] = {}
    exec(numpy_text(policy, policy_graph(policy), {**VERSIONS, **policy.describe()}, "A test."), module)
    return lambda inputs: module["step"](**inputs)
