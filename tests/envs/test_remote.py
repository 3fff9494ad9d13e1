"""Simulators elsewhere, as a workflow sees them: spaces that a config tells, and nothing to step."""

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
from evorl.envs.remote import is_remote, make_remote_simulators, space_from_config
from evorl.envs.space import Box, DictSpace, Discrete

SPACES = {"obs_space": {"shape": [3]}, "action_space": {"shape": [2], "low": -2.0, "high": 1.0}}


@pytest.mark.parametrize(
    ("config", "space"),
    [
        ({"n": 3}, Discrete(3)),
        ({"n": 3, "start": -1}, Discrete(3, start=-1)),
        ({"n": [2, 5], "start": [0, 1]}, MultiDiscrete([2, 5], start=[0, 1])),
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
        (None, r"env\.obs_space is missing: .*Set it, as in \{shape: \[4\]\}"),
        ({}, r"env\.obs_space must be a mapping, as in \{shape"),
        ("box", "must be a mapping"),
        ([4], "must be a mapping"),
        ({"n": 3, "shape": [1]}, "key of env.obs_space"),
        ({"shap": [3]}, "shape"),
        ({"n": 0}, r"env\.obs_space=.* is not a valid space: .*at least one element"),
        ({"shape": [2], "low": 2, "high": 1}, r"env\.obs_space=.* is not a valid space: .*low <= high"),
        ({"shape": [2], "dtype": "color"}, "is not a valid space"),
        ({"a": {"n": 2}, "b": {"n": 0}}, r"env\.obs_space\.b="),
    ],
    ids=str,
)
def test_what_is_no_space_is_told_with_an_example(config: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        space_from_config(config, "env.obs_space")


def test_a_task_that_shows_nothing_is_seen_as_a_constant() -> None:
    simulators = make_remote_simulators(obs_space={"shape": [0]}, action_space={"n": 4})
    assert simulators.obs_space == Box(1.0, 1.0, (1,))


def test_a_workflow_sees_rows_that_nobody_steps() -> None:
    env: Any = create_env({"library": "remote", "name": "simulator", **SPACES, "history": 2}, parallel=3)
    assert env.num_envs == 3
    assert env.obs_space.shape == (6,)
    assert env.action_space == Box(-1.0, 1.0, (2,))  # agents act in [-1, 1]
    state = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(state.obs, np.zeros((3, 6)))
    with pytest.raises(HostEnvError, match=r"evorl serve agent=.* env=remote, .* evorl act run="):
        env.simulators.main.step(np.zeros((3, 2)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="connect over the network"):
        jax.block_until_ready(env.step(state, jnp.zeros((3, 2))))
    env.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs_space": None}, r"env\.obs_space is missing"),
        ({"action_space": None}, r"env\.action_space is missing"),
        ({"max_episode_steps": 100}, "a simulator ends its episodes itself"),
        ({"name": "doom"}, "doom"),
    ],
    ids=str,
)
def test_options_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_remote_simulators(**{**SPACES, **changes})


def test_simulators_over_the_network_are_told_from_others() -> None:
    assert is_remote(create_env({"library": "remote", "name": "simulator", **SPACES, "history": 2}, parallel=2))
    assert not is_remote(create_env("CartPole-v1", parallel=2))


@pytest.mark.parametrize("config", [{"shape": [1e9, 1e9]}, {"shape": [10**12]}, {"shape": [-3]}, {"n": 10**12}])
def test_spaces_that_fit_no_memory_are_refused_with_their_setting(config: dict[str, object]) -> None:
    for whole in (config, {"camera": config}):
        with pytest.raises(ValueError, match=r"env\.obs_space") as error:
            space_from_config(whole, "env.obs_space")
        assert "268,435,456" in str(error.value) or "at least 0" in str(error.value)
