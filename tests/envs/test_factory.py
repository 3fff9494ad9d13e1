"""Environments from names and configs."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from omegaconf import OmegaConf

from evorl import envs
from evorl.envs import AutoresetMode, available_envs, create_env
from evorl.envs.libraries import LIBRARIES
from evorl.envs.wrappers import VmapAutoResetWrapper, VmapWrapper
from tests.support.errors import raises_naming


def test_names_and_configs_say_the_same() -> None:
    config = {"library": "gymnax", "name": "CartPole-v1", "parallel": 3, "autoreset_mode": "disabled", "gravity": 5.0}
    expected = create_env("CartPole-v1", parallel=3, autoreset_mode=AutoresetMode.DISABLED, gravity=5.0)
    for made in (
        create_env(config),
        create_env(OmegaConf.create(config)),
        create_env("gymnax/CartPole-v1", parallel=3, autoreset_mode="DISABLED", gravity=5.0),
        create_env(library="gymnax", name="CartPole-v1", parallel=3, autoreset_mode="disabled", gravity=5.0),
    ):
        assert made == expected
        assert hash(made) == hash(expected)
        assert isinstance(made, VmapWrapper)


def test_arguments_win_over_the_config() -> None:
    config = {"name": "CartPole-v1", "parallel": 3, "autoreset_mode": "disabled", "max_episode_steps": 7}
    env = create_env(config, parallel=1, autoreset_mode="normal", max_episode_steps=9)
    assert isinstance(env, VmapAutoResetWrapper)
    assert env.num_envs == 1
    assert env.max_episode_steps == 9


def test_none_means_the_default() -> None:
    config = {"name": "Pendulum-v1", "backend": None, "max_episode_steps": None, "reward_scale": None}
    assert create_env(config) == create_env("Pendulum-v1")
    assert create_env(config).max_episode_steps == 200


def test_history_and_observed_are_options_of_any_environment() -> None:
    env = create_env({"name": "CartPole-v1", "history": 4, "observed": [0, 2], "parallel": 3})
    assert env.obs_space.shape == (8,)
    assert env == create_env(OmegaConf.create({"name": "CartPole-v1", "observed": [0, 2]}), history=4, parallel=3)
    assert create_env("CartPole-v1", history=1) == create_env("CartPole-v1")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "CartPole-v1", "history": 0}, ("history", "got 0")),
        ({"name": "CartPole-v1", "frame_stack": 2}, ("gymnax CartPole-v1", "'frame_stack'")),
        ({"name": "CartPole-v1", "histoy": 2}, ("'histoy'", "'history'")),
        ({"name": "CartPole-v1", "observed": [0, 4]}, ("integers from 0 to 3", "got [0, 4]")),
        ("carpole-v1", ("'carpole-v1'", "'gymnax/CartPole-v1'")),
        ({"library": ["gymnax"], "name": "CartPole-v1"}, ("environment library", "['gymnax']")),
        ({"library": "gymnx", "name": "CartPole-v1"}, ("'gymnx'", "'gymnax'")),
        ({"library": "gymnax", "name": "Pendulum"}, ("'Pendulum'", "'Pendulum-v1'")),
        ({"name": "CartPole-v1", "autoreset_mode": "norml"}, ("'norml'", "'normal'")),
        ({"name": "CartPole-v1", "parallel": 0}, ("parallel", "got 0")),
        ({"name": "CartPole-v1", "action_repeat": 1.5}, ("action_repeat", "got 1.5")),
        ({"name": "CartPole-v1", "backend": "spring"}, ("gymnax CartPole-v1", "'backend'")),
        ({"name": "CartPole-v1", "gravity": "strong"}, ("gravity", "number", "got 'strong'")),
        ({"name": "CartPole-v1", "max_episode_steps": "abc"}, ("max_episode_steps", "got 'abc'")),
        ({}, ("name of the environment", "create_env('brax/hopper')")),
        (7, ("name or a mapping", "got int: 7")),
        ({"name": 3}, ("name or a mapping", "got int: 3")),
        ({"name": ["CartPole-v1"]}, ("name or a mapping", "got list")),
        (False, ("name or a mapping", "got bool")),
    ],
)
def test_errors(config: object, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        create_env(config)


def test_adapters_are_imported_when_an_environment_of_them_is_made() -> None:
    code = """
import sys
def adapters():
    return sorted(m for m in ("brax", "gymnax", "gymnax_import", "user", "stack", "options", "wrappers")
                  if f"evorl.envs.{m}" in sys.modules)
import evorl.envs, evorl.algorithms.ppo
print(adapters())
names = evorl.envs.available_envs()
print([library for library in names if library in sys.modules])
import evorl.envs as envs
from evorl.envs import create_wrapped_brax_env
print(create_wrapped_brax_env is envs.brax.create_wrapped_brax_env)
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.splitlines() == ["[]", "[]", "True"]


def test_a_library_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = types.ModuleType("toy_adapter")
    adapter.ENV_NAMES = ("walk",)  # pyright: ignore[reportAttributeAccessIssue]
    create_toy = lambda name, **options: types.SimpleNamespace(made=(name, options))  # noqa: E731
    adapter.create_toy = create_toy  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "toy_adapter", adapter)
    monkeypatch.setitem(LIBRARIES, "toy", "toy_adapter:create_toy")
    assert available_envs()["toy"] == ("walk",)
    for made in (create_env("walk", history=2), create_env("toy/walk", history=2)):
        assert made.made == ("walk", {"history": 2})
    assert create_env("walk").title == "toy/walk"
    with raises_naming(AttributeError, "evorl.envs", "'create_toys'"):
        envs.create_toys  # noqa: B018
