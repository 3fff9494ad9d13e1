"""Environments from names and configs."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from evorl.envs import AutoresetMode, available_envs, create_env
from evorl.envs.wrappers import VmapAutoResetWrapper, VmapWrapper


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
        ({"name": "CartPole-v1", "history": 0}, "history must be a whole number of at least 1, got 0"),
        ({"name": "CartPole-v1", "history": 1, "frame_stack": 2}, "are one option: give history alone"),
        ({"name": "CartPole-v1", "histoy": 2}, "did you mean 'history'"),
        ({"name": "CartPole-v1", "observed": [0, 4]}, r"whole numbers from 0 to 3, as in \[0\]; got \[0, 4\]"),
        ("carpole-v1", "did you mean 'CartPole-v1'"),
        ({"library": "gymnx", "name": "CartPole-v1"}, "did you mean 'gymnax'"),
        ({"library": "gymnax", "name": "Pendulum"}, "did you mean 'Pendulum-v1'"),
        ({"name": "CartPole-v1", "autoreset_mode": "norml"}, "did you mean 'NORMAL'"),
        ({"name": "CartPole-v1", "parallel": 0}, "parallel must be a whole number"),
        ({"name": "CartPole-v1", "action_repeat": 1.5}, "action_repeat must be a whole number"),
        ({"name": "CartPole-v1", "backend": "spring"}, "has no option 'backend'"),
        ({}, "Which environment"),
        (7, "a name or a mapping"),
    ],
)
def test_errors(config: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_env(config)


def test_available_envs() -> None:
    names = available_envs()
    assert set(names) == {"brax", "gymnax"}
    assert "hopper" in names["brax"]
    assert len(names["gymnax"]) == 25
