"""JAX environments as Gymnasium environments."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from evorl.envs import Box, DictSpace, Discrete, EnvState, TupleSpace, create_env
from evorl.envs.gymnasium_export import as_gymnasium, gymnasium_space
from evorl.envs.gymnasium_spaces import space_of
from tests.support.errors import raises_naming
from tests.support.toy_envs import ToyEnv, toy_state


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_it_is_an_environment_by_gymnasiums_own_check(name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(Box|render|spec).*")  # advice, not requirements
        check_env(as_gymnasium(create_env(f"gymnax/{name}").env), skip_render_check=True)


def test_an_episode_is_that_of_the_key_with_the_seeds_words() -> None:
    env = create_env("gymnax/CartPole-v1").env
    theirs = as_gymnasium(env)
    seed = (3 << 32) | 9
    state = env.reset(jax.random.wrap_key_data(np.array([3, 9], np.uint32)))
    obs, _ = theirs.reset(seed=seed)
    np.testing.assert_array_equal(obs, state.obs)
    for step in range(30):
        state = env.step(state, np.int32(step % 3 == 0))
        obs, reward, termination, truncation, _ = theirs.step(int(step % 3 == 0))
        np.testing.assert_allclose(obs, state.obs, rtol=1e-6)
        assert (reward, termination, truncation) == (state.reward, state.info.termination, state.info.truncation)
    first, _ = theirs.reset()
    second, _ = theirs.reset()
    assert (first != second).any()


def test_spaces_there_and_back_are_the_same() -> None:
    space = DictSpace({"a": Box(-1.0, 2.0, (3,)), "b": TupleSpace([Discrete(4), Box(0, 255, (2, 2), np.uint8)])})
    assert space_of(gymnasium_space(space)) == space


def test_vector_environments_are_refused_in_words() -> None:
    with raises_naming(TypeError, "single environment", "VmapAutoResetWrapper"):
        as_gymnasium(create_env("gymnax/CartPole-v1"))


class Gripper(ToyEnv):
    """Moves by nested actions, dicts in a tuple; observes the sum of their numbers."""

    obs_space = Box(-np.inf, np.inf, (1,))
    action_space: Any = DictSpace(
        {"b": TupleSpace([Discrete(3), DictSpace({"c": Box(-1.0, 1.0, (2,))})]), "a": Discrete(2)}
    )

    def reset(self, key: jax.Array) -> EnvState:
        """Return 0."""
        return toy_state(jnp.zeros(1), jnp.zeros(1))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """Return the sum of all numbers of the action."""
        total = jnp.reshape(action.a + action.b[0] + action.b[1].c.sum(), (1,))
        return toy_state(total, total)


def test_nested_actions_are_plain_dicts_of_gymnasium() -> None:
    env = as_gymnasium(Gripper())
    env.reset(seed=0)
    env.action_space.seed(3)
    for _ in range(5):
        action = env.action_space.sample()
        obs, *_ = env.step(action)
        np.testing.assert_allclose(obs, [action["a"] + action["b"][0] + action["b"][1]["c"].sum()], rtol=1e-6)
