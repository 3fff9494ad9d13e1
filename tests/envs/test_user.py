"""Environments of the user, by the name of the function that makes them."""

from __future__ import annotations

import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from evorl.algorithms.ppo import PPOWorkflow
from evorl.envs import create_env
from evorl.envs.wrappers import VmapWrapper
from tests.probe_envs import ProbeEnv, make_probe


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("own_envs")
    own.make = lambda sizes=(): ProbeEnv("best_action")  # pyright: ignore[reportAttributeAccessIssue]
    own.make_any = lambda **options: ProbeEnv(options.get("probe", "termination"))  # pyright: ignore[reportAttributeAccessIssue]
    own.make_many = lambda: make_probe("termination")  # pyright: ignore[reportAttributeAccessIssue]
    own.number = 3  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "own_envs", own)


def test_equal_functions_and_options_make_equal_envs() -> None:
    config = {"factory": "own_envs:make", "sizes": [1, 2], "max_episode_steps": 5, "parallel": 2, "name": None}
    env, again = create_env(config), create_env(config, autoreset_mode="normal")
    assert env == again
    assert hash(env) == hash(again)
    assert env != create_env(config, sizes=[1, 3])
    assert env != create_env(config, factory="own_envs:make_any")
    assert isinstance(create_env(config, autoreset_mode="disabled"), VmapWrapper)
    assert isinstance(env.unwrapped, ProbeEnv)
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(2, jnp.int32))
    assert env.max_episode_steps == 5
    assert state.info.steps.tolist() == [1, 1]


def test_a_config_trains_in_it() -> None:
    workflow = PPOWorkflow.build_from_config(
        {"env": {"factory": "own_envs:make_any", "max_episode_steps": 4}, "num_envs": 8, "rollout_length": 4}
    )
    assert workflow.env.unwrapped == workflow.eval_env.unwrapped == ProbeEnv("termination")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"factory": "own_envs"}, "env.factory must be like package.module:function, got 'own_envs'"),
        ({"factory": 3}, "env.factory must be like"),
        ({"factory": "own_envz:make"}, "Python finds no module 'own_envz'. Put the folder that holds it on PYTHONPATH"),
        ({"factory": "own_envs:mak"}, "own_envs has no function 'mak'; did you mean 'make'?"),
        ({"factory": "own_envs:number"}, "own_envs has no function 'number'"),
        ({"factory": "own_envs:make", "size": 3}, "own_envs:make has no option 'size'; did you mean 'sizes'?"),
        ({"factory": "own_envs:make_many"}, "must return a single evorl.envs.Env, got VmapAutoResetWrapper"),
        ({"factory": "own_envs:make", "library": "brax"}, "by its library and name, or by a factory"),
        ({"factory": "own_envs:make", "parallel": 0}, "parallel must be a whole number"),
    ],
)
def test_errors_in_words(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        create_env(config)
