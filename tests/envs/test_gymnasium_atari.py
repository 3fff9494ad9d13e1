"""Atari games: observations, rewards in training and evaluation, and lives as episodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.assembly import evaluation_env
from evorl.cli.composition import compose_config
from evorl.envs import AutoresetMode
from evorl.envs.factory import create_env
from evorl.envs.gymnasium import make_gymnasium_simulators
from evorl.envs.gymnasium_atari import with_lives_as_episodes
from evorl.envs.space import Discrete
from evorl.runs.spec import RunSpec
from tests.support.errors import raises_naming

FIRE = 1


def test_a_life_is_an_episode_of_one_game() -> None:
    preprocessing = {"name": "AtariPreprocessing", "noop_max": 0, "frame_skip": 4}
    simulators: Any = make_gymnasium_simulators(
        "ALE/Breakout-v5", 1, wrappers=[preprocessing], frameskip=1, terminal_on_life_loss=True
    )
    env = simulators._envs[0]
    first, _ = env.reset(seed=0)
    lives = []
    for _ in range(6):
        lives.append(env.unwrapped.ale.lives())
        steps, terminated = 0, False
        while not terminated:
            _, _, terminated, truncated, _ = env.step(FIRE)
            steps += 1
            assert not truncated
        assert 5 < steps < 200
        env.reset()
    assert lives == [5, 4, 3, 2, 1, 5]
    env.step(FIRE)
    np.testing.assert_array_equal(env.reset(seed=0)[0], first)  # a reset within an episode starts a new game
    assert env.unwrapped.ale.lives() == 5
    simulators.close()


def test_other_environments_have_no_lives() -> None:
    with raises_naming(ValueError, "terminal_on_life_loss", "Atari", "CartPole"):
        with_lives_as_episodes(gymnasium.make("CartPole-v1"))


def test_a_game_as_configured() -> None:
    config = compose_config(["agent=ppo", "env=atari/pong"])["env"]
    played = evaluation_env(RunSpec(workflow={"env": config}))
    assert {"reward_clip", "terminal_on_life_loss"} <= set(config) - set(played)
    env = create_env({**played, "parallel": 2, "autoreset_mode": AutoresetMode.DISABLED, "host": "callback"})
    assert isinstance(env.action_space, Discrete)
    state = env.reset(jax.random.key(0))
    assert state.obs.shape == (2, 84, 84, 4)
    assert state.obs.dtype == np.uint8
    before = state.obs
    state = jax.jit(env.step)(state, jnp.full(2, 2))
    np.testing.assert_array_equal(state.obs[..., :3], before[..., 1:])
    assert (state.obs[..., 3] != before[..., 3]).any()
    env.close()


@pytest.mark.parametrize(
    ("package", "extra", "name"),
    [("ale_py", "atari", "ALE/Pong-v5"), ("shimmy", "dm_control", "dm_control/walker-walk-v0")],
)
def test_a_missing_package_that_registers_environments_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with raises_naming(ImportError, name, f"the extra {extra})", package):
        create_env(f"gymnasium/{name}")


def test_shimmy_registers_the_tasks_of_dm_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registration = "gymnasium.register('dm_control/balance-v0', 'gymnasium.envs.classic_control:CartPoleEnv')"
    (tmp_path / "shimmy.py").write_text(f"import gymnasium\n\n{registration}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "shimmy", None)  # at the end, the module of this folder is removed again
    monkeypatch.delitem(sys.modules, "shimmy")
    env = create_env("gymnasium/dm_control/balance-v0", max_episode_steps=10, parallel=2)
    assert env.obs_space.shape == (4,)
    env.close()
    gymnasium.registry.pop("dm_control/balance-v0")


REAL_TASK = """
import numpy as np
from evorl.envs.factory import create_env

config = {"library": "gymnasium", "name": "dm_control/walker-walk-v0", "flatten_obs": True, "action_repeat": 2}
env = create_env(config, parallel=2, max_episode_steps=1000)
import jax
state = env.reset(jax.random.key(0))
assert state.obs.shape == (2, 24), state.obs.shape
state = env.step(state, np.zeros((2, 6), np.float32))
assert np.isfinite(state.obs).all() and (np.asarray(state.reward) >= 0).all()
env.close()
"""


def test_a_task_of_the_real_dm_control_is_stepped() -> None:
    pytest.importorskip("shimmy", reason="labmaze, which dm_control requires, has no wheel for Python 3.13")
    command = [sys.executable, "-W", "ignore", "-c", REAL_TASK]
    done = subprocess.run(
        command, env={**os.environ, "MUJOCO_GL": "disable"}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
