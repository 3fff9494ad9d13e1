"""Remote simulators as a workflow sees them: spaces from the config, and no steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from evorl.envs import create_env
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.remote import make_remote_simulators, space_from_config
from evorl.envs.space import Box, DictSpace, Discrete
from evorl.evaluators.episodes import longest_episode
from evorl.rendering import shown_episodes
from tests.support.errors import raises_naming

SPACES = {"obs_space": {"shape": [3]}, "action_space": {"shape": [2], "low": -2.0, "high": 1.0}}


@pytest.mark.parametrize(
    ("config", "space"),
    [
        ({"n": 3}, Discrete(3)),
        ({"n": 3, "start": -1}, Discrete(3, start=-1)),
        ({"n": [2, 5], "start": [0, 1]}, MultiDiscrete([2, 5], start=[0, 1])),
        ({"n": 3.0}, Discrete(3)),
        ({"n": [2.0, 5]}, MultiDiscrete([2, 5])),
        ({"shape": [4.0, 1e1]}, Box(-np.inf, np.inf, (4, 10))),
        ({"shape": []}, Box(-np.inf, np.inf)),
        ({"shape": [4]}, Box(-np.inf, np.inf, (4,))),
        ({"shape": [2], "low": -1, "high": [1, 2]}, Box(-1, [1, 2], (2,))),
        ({"shape": [84, 84], "dtype": "uint8", "low": 0, "high": 255}, Box(0, 255, (84, 84), np.uint8)),
        (
            {"eye": {"shape": [2]}, "hand": {"n": 2}},
            DictSpace({"eye": Box(-np.inf, np.inf, (2,)), "hand": Discrete(2)}),
        ),
    ],
    ids=str,
)
def test_spaces_of_configs(config: Any, space: Any) -> None:
    assert space_from_config(config, "env.obs_space") == space
    assert space_from_config(OmegaConf.create(config), "env.obs_space") == space


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, ("env.obs_space", "missing", "{shape: [4]}")),
        ({}, ("env.obs_space", "mapping", "{shape")),
        ("box", ("env.obs_space", "mapping", "got 'box'")),
        ([4], ("env.obs_space", "mapping", "got [4]")),
        ({"n": 3, "shape": [1]}, ("key of env.obs_space",)),
        ({"shap": [3]}, ("key of env.obs_space", "'shap'", "'shape'")),
        ({"n": 0}, ("env.obs_space=", "valid space", "n=0")),
        ({"shape": [2], "low": 2, "high": 1}, ("env.obs_space=", "valid space", "low <= high")),
        ({"shape": [2], "dtype": "colour"}, ("env.obs_space=", "valid space", "colour")),
        *(
            (config, ("env.obs_space=", "valid space", "integers"))
            for config in (
                {"n": 2.7},
                {"n": True},
                {"n": "3"},
                {"n": [2.7, 3]},
                {"n": 3, "start": 0.5},
                {"n": [2, 3], "start": [0, 0.5]},
                {"shape": [2.9]},
                {"shape": [float("nan")]},
                {"n": float("inf")},
            )
        ),
        ({"a": {"n": 2}, "b": {"n": 0}}, ("env.obs_space.b=",)),
    ],
    ids=str,
)
def test_what_is_no_space_is_told_with_an_example(config: Any, words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        space_from_config(config, "env.obs_space")


def test_a_task_that_shows_nothing_is_seen_as_a_constant() -> None:
    simulators = make_remote_simulators(obs_space={"shape": [0]}, action_space={"n": 4})
    assert simulators.obs_space == Box(1.0, 1.0, (1,))


def test_a_workflow_sees_rows_that_nobody_steps() -> None:
    env: Any = create_env({"library": "remote", "name": "simulator", **SPACES, "history": 2}, parallel=3)
    assert env.num_envs == 3
    assert env.obs_space.shape == (6,)
    assert env.action_space == Box(-1.0, 1.0, (2,))  # agent actions are in [-1, 1]
    state = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(state.obs, np.zeros((3, 6)))
    with raises_naming(HostEnvError, "evorl serve agent=", "env=remote", "evorl act run="):
        env.simulators.main.step(np.zeros((3, 2)))
    with raises_naming(jax.errors.JaxRuntimeError, "env=remote", "network"):
        jax.block_until_ready(env.step(state, jnp.zeros((3, 2))))
    env.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs_space": None}, ("env.obs_space", "missing")),
        ({"action_space": None}, ("env.action_space", "missing")),
        ({"max_episode_steps": 100}, ("env.max_episode_steps", "env=remote")),
        ({"name": "doom"}, ("doom",)),
    ],
    ids=str,
)
def test_options_that_cannot_be(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *words):
        make_remote_simulators(**{**SPACES, **changes})


def test_simulators_over_the_network_are_told_from_others() -> None:
    assert create_env({"library": "remote", "name": "simulator", **SPACES, "history": 2}, parallel=2).is_remote
    assert not create_env("CartPole-v1", parallel=2).is_remote


@pytest.mark.parametrize("config", [{"shape": [1e9, 1e9]}, {"shape": [10**12]}, {"shape": [-3]}, {"n": 10**12}])
def test_spaces_that_fit_no_memory_are_refused_with_their_setting(config: dict[str, object]) -> None:
    for whole in (config, {"camera": config}):
        with raises_naming(ValueError, "env.obs_space") as error:
            space_from_config(whole, "env.obs_space")
        assert "268,435,456" in str(error.value) or "at least 0" in str(error.value)


def test_episodes_that_this_process_cannot_play_are_refused() -> None:
    config = {"library": "remote", "name": "simulator", **SPACES}
    env = create_env(config, parallel=1, autoreset_mode="disabled")
    for play in (longest_episode, lambda env: shown_episodes._rendering_env(env, config)):
        with raises_naming(HostEnvError, "env=remote", "network", "evorl act"):
            play(env)
