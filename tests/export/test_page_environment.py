"""Environments that an HTML page can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import create_env
from evorl.envs.env import EnvState
from evorl.export.javascript import RUNTIME
from evorl.export.page_environment import NUM_STARTS, page_environment, random_observations
from evorl.types import Action
from tests.support.node import run_node
from tests.support.portable import stored
from tests.support.toy_envs import Countdown, MaskedEnv


def test_what_the_page_is_given(tmp_path: Path) -> None:
    policy = stored("dqn", tmp_path)
    world = page_environment(policy.policy, policy.env)
    assert world is not None
    assert world.inputs[-1] == "action"
    assert world.outputs[:4] == ("obs", "reward", "termination", "truncation")
    states = [name for name in world.inputs if name.startswith("state_")]
    assert list(world.outputs[4:]) == [f"next_{name}" for name in states]
    assert world.limit == 10
    assert len(world.starts) == NUM_STARTS
    assert all(set(start) == {"obs", *states} for start in world.starts)
    assert len({float(start["obs"][0]) for start in world.starts}) == NUM_STARTS
    assert np.abs(world.starts[0]["obs"]).max() <= 0.05


@pytest.mark.parametrize("env", ["Pendulum-v1", {"factory": f"{Countdown.__module__}:Countdown"}], ids=str)
@pytest.mark.parametrize(("repeat", "limit"), [(1, 7), (3, 7), (4, 8)])
def test_the_time_limit_is_in_environment_steps(env: Any, repeat: int, limit: int, tmp_path: Path) -> None:
    config = {"name": env} if isinstance(env, str) else env
    repeated = create_env({**config, "action_repeat": repeat, "max_episode_steps": limit})
    world = page_environment(stored("sac", tmp_path).policy, repeated)
    assert world is not None
    assert world.limit == limit


@pytest.mark.parametrize("name", ["masked", "dqn_convolutional"])
def test_one_that_draws_or_computes_what_has_no_rule_is_left_out(name: str, tmp_path: Path) -> None:
    policy = stored(name, tmp_path)
    assert page_environment(policy.policy, policy.env) is None
    seen = random_observations(policy.env)
    assert seen is not None
    assert len(seen) == NUM_STARTS
    assert [x.shape for x in seen[0]] == [port.shape for port in policy.policy.observations]
    assert len({x.tobytes() for x, *_ in seen}) > 5


class ShowingMistakes(MaskedEnv):
    """Observes whether the action that led here was masked."""

    def step(self, state: EnvState, action: Action) -> EnvState:
        after = super().step(state, action)
        return after.replace(obs=after.obs | {"observation": jnp.full(3, after.reward < 0.0, jnp.float32)})


def test_random_observations_follow_from_allowed_actions() -> None:
    seen = random_observations(create_env({"factory": f"{__name__}:ShowingMistakes", "max_episode_steps": 5}))
    assert seen is not None
    ports = np.concatenate([np.ravel(x) for row in seen for x in row if x.dtype == np.float32])
    assert ports.size == 3 * NUM_STARTS
    assert (ports != 1.0).all()


class Unmarked(Countdown):
    """Truncates a step to 1 with a positive action, and ends at 0 without a flag of termination."""

    def step(self, state: EnvState, action: Action) -> EnvState:
        after = super().step(state, action)
        is_cut = (state.env_state == 2) & (action[0] > 0)
        flags = {"termination": jnp.zeros((), bool), "truncation": is_cut}
        return after.replace(done=after.done | is_cut, info=after.info | flags)


def test_the_page_ends_episodes_as_training_does(tmp_path: Path) -> None:
    env = create_env({"factory": f"{__name__}:Unmarked", "max_episode_steps": 5}, parallel=2)
    world = page_environment(stored("sac", tmp_path).policy, env)
    assert world is not None
    flags = "({termination, truncation}) => [termination[0], truncation[0]]"
    states = "[[2, 1], [2, 0], [1, 0]].map(([left, push]) => ({state_0: Float64Array.of(left), action: [push]}))"
    program = f"{RUNTIME}{world.program}console.log(JSON.stringify({states}.map(environment).map({flags})))"
    output = run_node(program, folder=tmp_path)
    assert json.loads(output) == [[0, 1], [0, 0], [1, 0]]


class Summing(Countdown):
    """Computes its reward by an operation that has a rule for graphs, but no JavaScript form."""

    def step(self, state: EnvState, action: Action) -> EnvState:
        after = super().step(state, action)
        return after.replace(reward=jnp.cumsum(jnp.stack([after.reward, after.reward]))[-1])


def test_one_without_a_form_in_javascript_is_left_out(tmp_path: Path) -> None:
    policy = stored("dqn", tmp_path)
    env = create_env({"factory": f"{__name__}:Summing", "max_episode_steps": 5}, parallel=2)
    assert page_environment(policy.policy, env) is None


def test_a_simulator_is_left_out(tmp_path: Path) -> None:
    env = create_env("gymnasium/CartPole-v1")
    assert page_environment(stored("dqn", tmp_path).policy, env) is None
    assert random_observations(env) is None
    env.close()
