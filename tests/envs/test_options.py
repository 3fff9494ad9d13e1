"""Options of every environment, their values, and options as hashable values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.envs import AutoresetMode, create_env
from evorl.envs.env import as_autoreset_mode
from evorl.envs.options import (
    EnvOptions,
    as_hashable,
    check_options,
    from_hashable,
    parameter_names,
    split_options,
)
from tests.support.errors import raises_naming


def test_options_are_split_by_who_knows_them() -> None:
    shared, others = split_options({"parallel": 3, "gravity": 2.0, "history": 4})
    assert (shared, others) == ({"parallel": 3, "history": 4}, {"gravity": 2.0})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("parallel", "4", ("parallel", "got '4'")),
        ("max_episode_steps", "abc", ("max_episode_steps", "got 'abc'")),
        ("action_repeat", 1.5, ("action_repeat", "got 1.5")),
        ("history", True, ("history", "got True")),
        ("reward_clip", float("inf"), ("reward_clip", "got inf")),
        ("reward_scale", float("nan"), ("reward_scale", "got nan")),
        ("sparse_reward_interval", 0, ("sparse_reward_interval", "got 0")),
        ("flatten_obs", "no", ("flatten_obs", "true or false", "got 'no'")),
    ],
)
def test_values_are_checked(name: str, value: object, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        EnvOptions(**{name: value})


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_mode_by_member_and_name(mode: AutoresetMode) -> None:
    assert as_autoreset_mode(mode) is as_autoreset_mode(mode.name) is as_autoreset_mode(mode.value) is mode


def test_as_hashable_and_from_hashable() -> None:
    options = {"a": [1, 2.5], "b": {"c": np.arange(3)}, "d": None}
    other = {"d": None, "b": {"c": np.arange(3)}, "a": (1, 2.5)}
    assert as_hashable(options) == as_hashable(other)
    assert hash(as_hashable(options)) == hash(as_hashable(other))
    back = from_hashable(as_hashable(options))
    assert back["a"] == (1, 2.5)
    np.testing.assert_array_equal(back["b"]["c"], np.arange(3))
    assert len({as_hashable({"a": x}) for x in (1, 2, 1.0, True, [1], [True], "1")}) == 7
    with pytest.raises(TypeError):
        as_hashable({"a": {1, 2}})


def test_check_options() -> None:
    class Env:
        """Stand-in with two arguments."""

        def __init__(self, size: int = 3, *, noise: float = 0.1, **others: object) -> None: ...

    assert parameter_names(Env) == {"size", "noise"}
    check_options("env", {"size": 1}, parameter_names(Env))
    with raises_naming(ValueError, "option of env", "'nois'", "'noise'"):
        check_options("env", {"nois": 1}, parameter_names(Env))
    with raises_naming(ValueError, "'histry'", "'history'"):
        check_options("env", {"histry": 1}, parameter_names(Env))


@pytest.mark.parametrize("skill", [0, 3, 3.0, np.int64(2)])
def test_a_skill_is_an_index_from_0(skill: Any) -> None:
    env = create_env("gymnax/Pendulum-v1", skills=4, skill=skill)
    np.testing.assert_array_equal(env.reset(jax.random.key(0)).obs[0, 3:], np.eye(4)[int(skill)])


@pytest.mark.parametrize("skill", [4, -1, 1.5, "1", True])
def test_what_is_no_index_of_a_skill_is_refused(skill: object) -> None:
    with raises_naming(ValueError, "env.skill", "from 0 to 3", f"got {skill!r}"):
        create_env("gymnax/Pendulum-v1", skills=4, skill=skill)


@pytest.mark.parametrize(
    ("env", "argument"),
    [
        ("gymnax/CartPole-v1", "max_steps_in_episode"),
        ("xminigrid/MiniGrid-Unlock", "max_steps"),
        ("playground/CartpoleBalance", "episode_length"),
    ],
)
def test_the_time_limit_has_one_value(env: str, argument: str) -> None:
    with raises_naming(ValueError, "env.max_episode_steps=7", f"env.{argument}=9"):
        create_env(env, max_episode_steps=7, **{argument: 9})
    limits = ({"max_episode_steps": 7}, {argument: 7}, {"max_episode_steps": 7, argument: 7})
    assert {create_env(env, **each).max_episode_steps for each in limits} == {7}
