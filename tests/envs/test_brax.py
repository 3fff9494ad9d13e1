"""The brax adapter: the contract on hopper, stable types of all environments, backends, errors."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, DictSpace, create_wrapped_brax_env
from evorl.envs.brax import ENV_NAMES, BraxAdapter, _brax_envs
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import EnvContract
from tests.support.errors import raises_naming


class TestHopper(EnvContract):
    """Falls after some dozens of random steps; the time limit is 40."""

    num_steps = 200
    tolerance = 1e-4

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build Hopper on the spring backend."""
        return create_wrapped_brax_env(
            "hopper", parallel=parallel, autoreset_mode=autoreset_mode, backend="spring", max_episode_steps=40
        )

    def test_metrics_are_brax_own(self, records: dict) -> None:
        metrics = records["metrics"]
        total = metrics["reward_forward"] + metrics["reward_ctrl"] + metrics["reward_healthy"]
        np.testing.assert_allclose(total, records["reward"], rtol=1e-4, atol=1e-5)


def has_stable_types(vector_env: VectorEnv) -> bool:
    env = vector_env.env  # one environment: several have equally stable types
    state = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, state, env.action_space.spec)
    types = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (state, after)]
    return jax.tree.structure(state) == jax.tree.structure(after) and types[0] == types[1]


@pytest.mark.parametrize("name", ENV_NAMES)
def test_every_environment_has_stable_types(name: str) -> None:
    """Every environment keeps its types; Swimmer requires a patch of its fluid forces."""
    env = create_wrapped_brax_env(name, parallel=2, autoreset_mode=AutoresetMode.DISABLED)
    assert has_stable_types(env)
    assert env.max_episode_steps == 1000
    assert env.action_space == Box(-1.0, 1.0, env.action_space.shape)


@pytest.mark.parametrize("backend", ["positional", "mjx"])
def test_backends(backend: str) -> None:
    env = create_wrapped_brax_env("inverted_pendulum", parallel=2, backend=backend)
    assert env.unwrapped.brax_env.backend == backend
    assert has_stable_types(env)


def test_the_list_of_names_is_brax_own() -> None:
    assert set(_brax_envs()._envs) - {"fast"} == set(ENV_NAMES)


def test_nothing_is_printed_or_warned() -> None:
    code = """
import warnings
warnings.simplefilter("error", UserWarning)
from evorl.envs import create_env
create_env("brax/inverted_pendulum", backend="generalized")
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert "warp" not in done.stderr


def test_errors_name_the_nearest() -> None:
    with raises_naming(ValueError, "'hoper'", "'hopper'"):
        create_wrapped_brax_env("hoper")
    with raises_naming(ValueError, "'sprng'", "'spring'"):
        create_wrapped_brax_env("hopper", backend="sprng")
    with raises_naming(ValueError, "swimmer", "env.backend=spring", "env.backend=generalized"):
        create_wrapped_brax_env("swimmer", backend="spring")
    with raises_naming(ValueError, "'reset_noise'", "'reset_noise_scale'"):
        create_wrapped_brax_env("hopper", reset_noise=0.1)


def test_equal_arguments_make_equal_environments() -> None:
    env = create_wrapped_brax_env("fast", parallel=2)
    assert env == create_wrapped_brax_env("fast", parallel=2)
    assert hash(env) == hash(create_wrapped_brax_env("fast", parallel=2))
    assert env != create_wrapped_brax_env("fast", parallel=3)
    assert env != create_wrapped_brax_env("fast", parallel=2, max_episode_steps=10)
    assert env.unwrapped != BraxAdapter(env.unwrapped.brax_env)
    assert BraxAdapter(env.unwrapped.brax_env) == BraxAdapter(env.unwrapped.brax_env)


def test_a_brax_environment_of_ones_own_with_named_observations() -> None:
    base = _brax_envs().base

    class Named(base.Env):
        """Counter that returns Python numbers, as some environments do."""

        observation_size, action_size, backend = {"a": 2}, 1, "none"

        def reset(self, rng: jax.Array):
            zero = jnp.zeros(())
            obs = {"a": jax.random.uniform(rng, (2,)), "b": jnp.zeros((3,))}
            return base.State(None, obs, zero, zero, {"m": zero})

        def step(self, state, action):
            state.metrics.update(m=state.metrics["m"] + 1)
            return state.replace(reward=1, done=0.0)

    env = BraxAdapter(Named())
    assert isinstance(env.obs_space, DictSpace)
    start = env.reset(jax.random.PRNGKey(0))
    state, _ = jax.lax.scan(lambda s, _: (env.step(s, jnp.zeros(1)), None), start, length=3)
    assert start.info.metrics.m == 0
    assert state.info.metrics.m == 3
    assert state.reward.dtype == jnp.float32
    assert state.done.dtype == jnp.bool_
    assert env.obs_space.contains(state.obs)
