"""The gymnax adapter: the contract, all environments, spaces, options."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, Discrete, create_wrapped_gymnax_env
from evorl.envs.gymnax import CLASSES, ENV_NAMES, EXCLUDED, GymnaxAdapter
from evorl.envs.gymnax_import import SWITCH, load_environment_class
from evorl.envs.wrappers import ActionConversionWrapper, VectorEnv
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming


class TestCartPole(VectorEnvContract):
    """Terminates; the time limit of 25 steps also truncates."""

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build CartPole with at most 25 steps."""
        return create_wrapped_gymnax_env(
            "CartPole-v1", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=25
        )


class TestPendulum(VectorEnvContract):
    """Never terminates; continuous actions."""

    can_terminate = False
    tolerance = 1e-4

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build Pendulum with 20 steps."""
        return create_wrapped_gymnax_env(
            "Pendulum-v1", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=20
        )


@pytest.mark.parametrize("name", ENV_NAMES)
def test_every_environment_has_stable_types(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from plotting libraries that some of them import
        env = create_wrapped_gymnax_env(name, parallel=2)
    state = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, state, env.action_space.zeros((2,)))
    assert jax.tree.structure(state) == jax.tree.structure(after)
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert (state.obs.shape[1:], state.obs.dtype) == (env.obs_space.shape, env.obs_space.dtype)
    assert env.max_episode_steps == env.unwrapped.params.max_steps_in_episode


@pytest.mark.parametrize("name", ["Breakout-MinAtar", "MemoryChain-bsuite", "FourRooms-misc", "FrozenLake-misc"])
def test_observations_are_in_their_space(name: str) -> None:
    env = create_wrapped_gymnax_env(name, parallel=2)

    @jax.jit
    def play(key: jax.Array) -> jax.Array:
        def step(state, step_key):
            action = jax.vmap(env.action_space.sample)(jax.random.split(step_key, 2))
            state = env.step(state, action)
            return state, env.obs_space.contains(state.obs) & env.obs_space.contains(state.info.next_obs)

        return jax.lax.scan(step, env.reset(key), jax.random.split(key, 100))[1]

    assert play(jax.random.key(0)).all()


def test_the_table_of_classes_is_gymnax_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gymnax import registration
    theirs = {name: (cls.__module__, cls.__name__) for name, cls in registration._builtins.items()}
    ours = {name: (f"gymnax.environments.{module}", cls) for name, (module, cls) in CLASSES.items()}
    assert {name: entry for name, entry in theirs.items() if name not in EXCLUDED} == ours


def test_one_environment_is_imported_without_the_others() -> None:
    code = """
import sys
from evorl.envs import create_env
create_env("CartPole-v1")
assert not any(name.split(".")[0] in ("gymnax", "matplotlib", "brax", "seaborn") for name in sys.modules)
import gymnax
assert gymnax.make("CartPole-v1")[0].name == "CartPole-v1"
assert gymnax.environments.classic_control.cartpole.CartPole is gymnax.environments.CartPole
assert create_env("MountainCar-v0").unwrapped.gymnax_env.__class__ is gymnax.environments.MountainCar
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_plain_import_can_be_asked_for() -> None:
    code = """
import sys, warnings
warnings.simplefilter("ignore")
from evorl.envs.gymnax_import import load_environment_class
cartpole = load_environment_class("classic_control.cartpole", "CartPole")
assert sys.modules["gymnax"].environments.CartPole is cartpole
"""
    environment = {**os.environ, SWITCH: "whole"}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)


def test_environments_that_download_are_refused() -> None:
    with raises_naming(ValueError, "MNISTBandit-bsuite", "downloads"):
        create_wrapped_gymnax_env("MNISTBandit-bsuite")


def test_old_gymnax_is_refused() -> None:
    class OldEnv:
        """Environment without ``is_truncated``."""

    with raises_naming(TypeError, "gymnax >= 1.0"):
        GymnaxAdapter(OldEnv())


def test_parameters_and_constructor_arguments() -> None:
    env = create_wrapped_gymnax_env("CartPole-v1", gravity=3.0, max_episode_steps=7)
    assert env.unwrapped.params.gravity == 3.0
    assert env.max_episode_steps == 7
    assert create_wrapped_gymnax_env("DeepSea-bsuite", size=5).obs_space.shape == (5, 5)
    with raises_naming(ValueError, "'gravty'", "'gravity'"):
        create_wrapped_gymnax_env("CartPole-v1", gravty=3.0)
    with raises_naming(ValueError, "max_episode_steps", "got 0"):
        create_wrapped_gymnax_env("CartPole-v1", max_episode_steps=0)


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("CartPole-v1", {"max_steps_in_episode": 2.5}, ("env.max_steps_in_episode", "got 2.5")),
        ("CartPole-v1", {"max_steps_in_episode": 0}, ("env.max_steps_in_episode", "positive", "got 0")),
        ("CartPole-v1", {"max_steps_in_episode": True}, ("env.max_steps_in_episode", "got True")),
        ("Freeway-MinAtar", {"player_speed": 1.5}, ("env.player_speed", "integer", "got 1.5")),
        ("CartPole-v1", {"gravity": "9"}, ("env.gravity", "must be a number", "got '9'")),
    ],
)
def test_numbers_have_the_type_of_their_parameter(name: str, options: dict, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        create_wrapped_gymnax_env(name, **options)


def test_numbers_of_another_type_with_the_same_value_are_accepted() -> None:
    env = create_wrapped_gymnax_env("CartPole-v1", max_steps_in_episode=5e1, gravity=9)
    assert env.max_episode_steps == 50
    assert create_wrapped_gymnax_env("Freeway-MinAtar", player_speed=-1).unwrapped.params.player_speed == -1
    assert not create_wrapped_gymnax_env("Asterix-MinAtar", ramping=False).unwrapped.params.ramping


def test_spaces_are_converted() -> None:
    env = create_wrapped_gymnax_env("CartPole-v1")
    assert env.action_space == Discrete(2)
    assert env.obs_space.high[1] == np.inf  # gymnax uses the largest float
    pendulum = create_wrapped_gymnax_env("Pendulum-v1")
    assert pendulum.action_space == Box(-1.0, 1.0, (1,))
    assert pendulum.unwrapped.action_space == Box(-2.0, 2.0, (1,))
    assert not isinstance(create_wrapped_gymnax_env("MountainCarContinuous-v0").env.env, ActionConversionWrapper)
    # Declared as integers but returned as floats, and vice versa.
    assert create_wrapped_gymnax_env("Catch-bsuite").obs_space.dtype == np.float32
    lake = create_wrapped_gymnax_env("FrozenLake-misc")
    assert lake.obs_space == Box(0.0, 1.0, (16,))
    assert create_wrapped_gymnax_env("FrozenLake-misc", flatten_obs=False).obs_space == Discrete(16)


def test_random_steps_draw_from_the_episode_key() -> None:
    env = create_wrapped_gymnax_env("BernoulliBandit-misc", parallel=64, autoreset_mode="FAST", max_episode_steps=4)
    assert env.unwrapped._step_draws

    @jax.jit
    def rewards(key: jax.Array) -> jax.Array:
        def step(state, _):
            state = env.step(state, jnp.zeros(64, jnp.int32))
            return state, state.reward

        return jax.lax.scan(step, env.reset(key), length=8)[1]

    paid = np.asarray(rewards(jax.random.key(0)))
    # FAST: the second episode has the start of the first and different random numbers.
    assert not np.array_equal(paid[:4], paid[4:])
    assert 0.3 < paid.mean() < 0.7


def test_the_car_stops_at_the_left_wall() -> None:
    """At the left wall the car's velocity becomes 0, as in Gymnasium; gymnax 1.0.1 keeps it."""
    env = create_wrapped_gymnax_env("MountainCarContinuous-v0").unwrapped
    state = env.reset(jax.random.key(0))
    before = state.env_state.replace(position=jnp.asarray(-1.19), velocity=jnp.asarray(-0.05))
    state = env.step(state.replace(env_state=before), jnp.asarray([-1.0]))
    np.testing.assert_allclose(state.obs, [-1.2, 0.0])
    assert float(state.env_state.velocity) == 0.0
    assert float(state.reward) == pytest.approx(-0.1)
    # Other positions are unchanged.
    before = before.replace(position=jnp.asarray(-0.5))
    state = env.step(state.replace(env_state=before), jnp.asarray([-1.0]))
    assert float(state.obs[1]) == pytest.approx(-0.05 - 0.0015 - 0.0025 * np.cos(-1.5))


def test_an_adapter_of_ones_own_environment() -> None:
    cartpole = load_environment_class("classic_control.cartpole", "CartPole")()
    params = dataclasses.replace(cartpole.default_params, max_steps_in_episode=3)
    env = GymnaxAdapter(cartpole, params)
    assert env == GymnaxAdapter(cartpole, params)
    assert env != GymnaxAdapter(cartpole)
    state = env.reset(jax.random.PRNGKey(0))
    for _ in range(3):
        state = env.step(state, jnp.asarray(1))
    assert state.info.truncation
    assert not state.info.termination


def test_bodies_of_classic_control_are_told() -> None:
    env = create_wrapped_gymnax_env("CartPole-v1", parallel=2)
    state = env.reset(jax.random.key(0))
    physics = env.physics(state)
    assert list(physics) == ["x", "x_dot", "theta", "theta_dot"]
    np.testing.assert_array_equal(jnp.stack(list(physics.values()), axis=-1), state.obs)
    for name, fields in (("Pendulum-v1", 2), ("Acrobot-v1", 4), ("MountainCar-v0", 2), ("MountainCarContinuous-v0", 2)):
        other = create_wrapped_gymnax_env(name, parallel=2)
        shapes = jax.eval_shape(lambda key, env=other: env.physics(env.reset(key)), jax.random.key(0))
        assert [x.shape for x in shapes.values()] == [(2,)] * fields
    grid = create_wrapped_gymnax_env("Breakout-MinAtar", parallel=2)
    assert jax.eval_shape(lambda key: grid.physics(grid.reset(key)), jax.random.key(0)) == {}
