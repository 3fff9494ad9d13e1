"""Small workflows that many tests share, so that their compiled programs are shared too, and ways to compare states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.agent import AgentState, random_actions
from evorl.algorithms.a2c import A2CWorkflow
from evorl.algorithms.cemrl import CEMRLWorkflow
from evorl.algorithms.crossq import CrossQWorkflow
from evorl.algorithms.discor import DisCorWorkflow
from evorl.algorithms.dqn import DQNWorkflow
from evorl.algorithms.erl import ERLWorkflow
from evorl.algorithms.impala import IMPALAWorkflow
from evorl.algorithms.map_elites import MAPElitesWorkflow
from evorl.algorithms.neuroevolution import NeuroevolutionWorkflow
from evorl.algorithms.pbt import PBTWorkflow
from evorl.algorithms.pga_me import PGAMEWorkflow
from evorl.algorithms.ppo import PPOWorkflow
from evorl.algorithms.pqn import PQNWorkflow
from evorl.algorithms.r2d2 import R2D2Workflow
from evorl.algorithms.reinforce import ReinforceWorkflow
from evorl.algorithms.sac import SACWorkflow
from evorl.algorithms.td3 import TD3Workflow
from evorl.algorithms.tqc import TQCWorkflow
from evorl.algorithms.trpo import TRPOWorkflow
from evorl.envs.wrappers.vector import VectorEnv
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict, State
from evorl.workflows import Workflow, execution

NUM_ENVS = 8
EPISODE_STEPS = 10  # evaluations are short, and many episodes end
_SHARED = {
    "num_envs": NUM_ENVS,
    "devices": 1,
    "env_chunk": None,
    "agent": {"network": {"torso": [8]}},
    "eval_episodes": 4,
    "eval_interval": 0,
}
PPO_CONFIG = {**_SHARED, "rollout_length": 8, "num_epochs": 2, "num_minibatches": 2, "total_timesteps": 64 * 20}
SAC_CONFIG = {
    **_SHARED,
    "updates_per_iteration": 2,
    "batch_size": 16,
    "learning_starts": 16,
    "replay_capacity": 128,
    "total_timesteps": 8 * 20,
}
R2D2_CONFIG = {
    **SAC_CONFIG,
    "agent": {"network": {"torso": [8], "memory": {"type": "gru", "size": 8}}},
    "rollout_length": 2,
    "burn_in": 2,
    "sequence_length": 4,
    "sequence_period": 2,
    "total_timesteps": 16 * 20,
}
BATCH_RENORM = {"torso": ["batch_renorm", 8, "batch_renorm"]}
ONE_STEP_CONFIG = {**_SHARED, "rollout_length": 8, "total_timesteps": 64 * 20}
MAP_ELITES_CONFIG = {
    **{name: value for name, value in _SHARED.items() if name != "num_envs"},
    "pop_size": 8,
    "descriptors": ["next_obs.0", "next_obs.2"],
    "archive": {"name": "grid", "low": [-1.0, -8.0], "high": [1.0, 8.0], "bins": [4, 4]},
    "fitness_offset": -200.0,
    "variation": {"iso_sigma": 0.1, "line_sigma": 0.5},
    "total_timesteps": 8 * EPISODE_STEPS * 20,
}
PGA_ME_CONFIG = {
    **{name: value for name, value in MAP_ELITES_CONFIG.items() if name != "agent"},
    "gradient_share": 0.5,
    "policy_updates": 3,
    "policy_batch_size": 16,
    "learner": {
        "workflow": "evorl.algorithms.td3.TD3Workflow",
        "agent": {"network": {"torso": [8]}},
        "updates_per_iteration": 4,
        "batch_size": 16,
        "replay_capacity": 256,
    },
}
POP_SIZE = 6
EVOLUTION_CONFIG = {
    **{name: value for name, value in _SHARED.items() if name != "num_envs"},
    "optimizer": {"name": "openes", "pop_size": POP_SIZE},
    "total_timesteps": POP_SIZE * EPISODE_STEPS * 20,
}
_CONFIGS = {
    "a2c": (A2CWorkflow, ONE_STEP_CONFIG),
    "crossq": (CrossQWorkflow, {**SAC_CONFIG, "agent": {"network": BATCH_RENORM}}),
    "discor": (DisCorWorkflow, SAC_CONFIG),
    "dqn": (DQNWorkflow, SAC_CONFIG),
    "impala": (IMPALAWorkflow, PPO_CONFIG),
    "map_elites": (MAPElitesWorkflow, MAP_ELITES_CONFIG),
    "pga_me": (PGAMEWorkflow, PGA_ME_CONFIG),
    "neuroevolution": (NeuroevolutionWorkflow, EVOLUTION_CONFIG),
    "ppo": (PPOWorkflow, PPO_CONFIG),
    "pqn": (PQNWorkflow, PPO_CONFIG),
    "r2d2": (R2D2Workflow, R2D2_CONFIG),
    "reinforce": (ReinforceWorkflow, ONE_STEP_CONFIG),
    "sac": (SACWorkflow, SAC_CONFIG),
    "td3": (TD3Workflow, SAC_CONFIG),
    "tqc": (TQCWorkflow, SAC_CONFIG),
    "trpo": (TRPOWorkflow, PPO_CONFIG),
}
_OF_THE_RUN = ("devices", "env_chunk", "eval_episodes", "eval_interval")


def inner_config(algorithm: str) -> dict[str, Any]:
    """The config of an algorithm as a part of another's, without what is set for the whole run."""
    cls, config = _CONFIGS[algorithm]
    own = {name: value for name, value in config.items() if name not in _OF_THE_RUN}
    return {"workflow": f"{cls.__module__}.{cls.__name__}", **own}


PBT_CONFIG = {
    **{name: _SHARED[name] for name in _OF_THE_RUN},
    "inner": inner_config("ppo"),
    "search_space": {
        "gae_lambda": {"low": 0.8, "high": 1.0},
        "optimizer": {"learning_rate": {"low": 1e-3, "high": 1e-2, "scale": "log"}},
        "agent.clip_epsilon": {"low": 0.1, "high": 0.4, "scale": "log"},
    },
    "num_members": 4,
    "generation_interval": 64 * 2,
    "total_timesteps": 4 * 64 * 2 * 20,
}
_CONFIGS["pbt"] = (PBTWorkflow, PBT_CONFIG)
ERL_CONFIG = {
    **{name: _SHARED[name] for name in _OF_THE_RUN},
    "learner": {**inner_config("td3"), "num_envs": 1, "learning_starts": 60, "replay_capacity": 512},
    "optimizer": {"name": "ga", "pop_size": 4, "num_elites": 2},
    "log_interval": 1,
    "total_timesteps": 800,
}
_CONFIGS["erl"] = (ERLWorkflow, ERL_CONFIG)
_CONFIGS["cemrl"] = (CEMRLWorkflow, {**ERL_CONFIG, "optimizer": {"name": "sepcem", "pop_size": 4}})
ENVS = ("CartPole-v1", "Pendulum-v1")


def small(algorithm: str, env: str | Mapping[str, Any] = "CartPole-v1", **changes: Any) -> Workflow:
    """A workflow of ``algorithm`` with tiny networks, some entries of its config changed."""
    cls, config = _CONFIGS[algorithm]
    env = {"name": env, "max_episode_steps": EPISODE_STEPS} if isinstance(env, str) else env
    return cls.build_from_config({**config, "env": env, **changes})


def one_iteration(workflow: Workflow, state: State) -> tuple[PyTreeDict, State]:
    """Metrics and the next state by the program that trainings run; the state may be used again."""
    metrics, state = execution.iterate_program(workflow, jax.tree.map(jnp.copy, state), 1)
    return jax.tree.map(lambda x: x[0], metrics), state


def transitions(env: VectorEnv, num_rows: int) -> SampleBatch:
    """Random transitions ``[N, ...]`` as off-policy algorithms are given them: some terminated, weights unequal."""
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


def moved_apart(agent_state: AgentState, *names: str) -> AgentState:
    """The agent with noise on some of its parameters, so that they are not those they were copied from."""
    moved = {
        name: jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(1), x.shape), agent_state.params[name])
        for name in names
    }
    return agent_state.replace(params=agent_state.params.replace(**moved))


def arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf by its path, PRNG keys as their words."""
    return {jax.tree_util.keystr(path): _array(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _array(leaf: Any) -> np.ndarray:
    is_key = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_identical(actual: Any, expected: Any) -> None:
    """Every leaf equal to the last bit."""
    actual, expected = arrays(actual), arrays(expected)
    assert actual.keys() == expected.keys()
    different = [path for path, value in expected.items() if not np.array_equal(actual[path], value, equal_nan=True)]
    assert not different, f"{len(different)} of {len(expected)} leaves differ: {different[:6]}"


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Every leaf equal up to ``tolerance``, absolute and relative."""
    actual, expected = arrays(actual), arrays(expected)
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=tolerance, atol=tolerance, err_msg=path)
