"""Tasks on MJX: Gymnasium's steps up to float32 and solver tolerance, the contract, options, errors."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mujoco.mjx._src import forward as mjx_dynamics

from evorl.envs import AutoresetMode, create_env
from evorl.envs.env import EnvState
from evorl.envs.mjx import (
    ENV_NAMES,
    KeyDraws,
    MjxAdapter,
    MjxState,
    _load_mjx,
    create_wrapped_mjx_env,
    make_mjx_adapter,
)
from evorl.envs.mujoco_catalog import TASKS
from evorl.envs.options import as_hashable
from evorl.envs.wrappers import VectorEnv
from evorl.types import PyTreeDict
from tests.conformance.env import EnvContract
from tests.support.errors import raises_naming

NUM_STEPS = 200
STATE = ("qpos", "qvel", "qacc_warmstart")


@functools.cache
def recorded_steps(gymnasium_id: str, derived: tuple[str, ...]) -> dict[str, Any]:
    """Record ``NUM_STEPS`` random steps over several episodes, each entry ``[T, ...]`` in float64.

    Args:
        gymnasium_id: id of the environment.
        derived: fields of ``MjData`` to record of the state before each step.
    """
    env = gymnasium.make(gymnasium_id)
    # Gymnasium's environment type does not declare MuJoCo's data.
    data: Any = env.unwrapped.data  # pyright: ignore[reportAttributeAccessIssue]
    rng, steps, space = np.random.default_rng(5), [], env.action_space
    env.reset(seed=0)
    for number in range(NUM_STEPS):
        before = {name: getattr(data, name).copy() for name in (*STATE, *derived)}
        action = rng.uniform(space.low, space.high)  # pyright: ignore[reportAttributeAccessIssue]
        obs, reward, terminated, truncated, info = env.step(action)
        steps.append({"before": before, "action": action, "obs": obs, "reward": reward, "done": terminated, **info})
        if terminated or truncated:
            env.reset(seed=number + 1)
    env.close()
    return jax.tree.map(lambda *x: np.array(x, np.float64), *steps)


def first_observation(gymnasium_id: str, state: MjxState) -> np.ndarray:
    """Return the observation of Gymnasium's environment at the start of an episode in this state."""
    env: Any = gymnasium.make(gymnasium_id).unwrapped
    env.reset_model = lambda: env.set_state(*(np.float64(x) for x in (state.qpos, state.qvel)))
    env._get_reset_info = dict
    env.reset()
    obs = env._get_obs()
    env.close()
    return obs


def steps_of_mjx(adapter: MjxAdapter, steps: dict[str, Any]) -> tuple[EnvState, EnvState]:
    """Run the same steps on MJX, each from Gymnasium's state, ``[T, ...]``; return them and a reset state."""
    before, action = jax.tree.map(np.float32, (steps["before"], steps["action"]))
    derived = PyTreeDict({name: value for name, value in before.items() if name not in STATE})
    state = MjxState(**{name: before[name] for name in STATE}, derived=derived)
    nothing = np.zeros(NUM_STEPS, np.float32)
    batch = EnvState(state, nothing, nothing, nothing > 0)

    # Loop-invariant code motion takes a fifth of the compile time, and gains nothing here.
    @functools.partial(jax.jit, compiler_options={"xla_disable_hlo_passes": "while-loop-invariant-code-motion"})
    def both(*step: Any) -> tuple[EnvState, EnvState]:
        return jax.vmap(adapter.step)(*step), adapter.reset(jax.random.key(0))

    return both(batch, action)


class TestInvertedPendulum(EnvContract):
    """The smallest body. With random actions it falls after about as many steps as the time limit."""

    tolerance = 1e-4

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        return create_wrapped_mjx_env(
            "inverted_pendulum", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=6
        )


@pytest.mark.parametrize("name", ENV_NAMES)
def test_spaces_and_limits_are_those_of_the_host(name: str) -> None:
    env, host = create_wrapped_mjx_env(name, parallel=2), create_env(f"host/{name}", parallel=2)
    assert (env.obs_space, env.action_space) == (host.obs_space, host.action_space)
    assert env.max_episode_steps == host.max_episode_steps == 1000
    assert create_wrapped_mjx_env(name, max_episode_steps=None).max_episode_steps == 1000
    host.close()


@pytest.mark.parametrize(
    ("name", "gymnasium_id", "num_ends"),
    [
        ("ant", "Ant-v5", 2),
        ("halfcheetah", "HalfCheetah-v5", 0),
        ("hopper", "Hopper-v5", 9),
        ("humanoid", "Humanoid-v5", 8),
        ("swimmer", "Swimmer-v5", 0),
        ("walker2d", "Walker2d-v5", 10),
    ],
)
def test_steps_are_those_of_gymnasium(name: str, gymnasium_id: str, num_ends: int) -> None:
    """Steps agree with Gymnasium: half of 200 to float32 precision, 95 % to 2e-4; the others start in impacts.

    In impacts, float32 changes when the solver stops; one contact in 200 differs in its second digit.
    """
    adapter = make_mjx_adapter(name)
    theirs = recorded_steps(gymnasium_id, adapter.task.derived)
    ours, start = steps_of_mjx(adapter, theirs)
    assert theirs["done"].sum() == num_ends
    np.testing.assert_array_equal(ours.done, theirs["done"])
    np.testing.assert_array_equal(ours.info.termination, theirs["done"])
    outputs = {"reward": ours.reward, **ours.info.metrics}
    for entry, values in {"obs": ours.obs, **{x: v for x, v in outputs.items() if x in theirs}}.items():
        error = np.abs(np.asarray(values) - theirs[entry]) / (1 + np.abs(theirs[entry]))
        worst = np.sort(error.reshape(len(error), -1).max(axis=1))
        assert worst[100] < 1e-5, entry
        assert worst[190] < 2e-4, entry
        assert worst[-1] < 0.1, entry
    assert len(outputs.keys() & theirs.keys()) > 1
    terms = [np.asarray(values) for entry, values in ours.info.metrics.items() if entry.startswith("reward_")]
    np.testing.assert_allclose(sum(terms), ours.reward, rtol=1e-4, atol=1e-5)
    # Starts match Gymnasium's, with the types of a step.
    np.testing.assert_allclose(start.obs, first_observation(gymnasium_id, start.env_state), rtol=1e-5, atol=1e-6)
    assert not start.reward
    assert not start.done
    assert not any(np.any(values) for values in start.info.metrics.values())
    assert jax.tree.structure(start) == jax.tree.structure(ours)
    for x, y in zip(jax.tree.leaves(start), jax.tree.leaves(ours), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape[1:], y.dtype, y.weak_type)


def test_starts_are_drawn_as_gymnasium_draws_them() -> None:
    """Initial positions are uniform, velocities normal where Gymnasium's are and else uniform."""

    @jax.jit
    def starts(keys: jax.Array) -> Any:
        tasks = {name: make_mjx_adapter(name).task for name in ("ant", "hopper")}
        middle = jnp.ones(6), jnp.zeros(6)
        return {n: jax.vmap(lambda key, t=t: t.start(KeyDraws(key), *middle))(keys) for n, t in tasks.items()}

    drawn = starts(jax.random.split(jax.random.key(0), 2000))
    for name, scale in (("ant", 0.1), ("hopper", 5e-3)):
        qpos, qvel = (np.asarray(x) for x in drawn[name])
        assert np.abs(qpos - 1).max() <= scale * 1.001
        assert (qpos - 1).std() == pytest.approx(scale / np.sqrt(3), rel=0.03)
        assert abs(np.corrcoef(qpos.ravel(), qvel.ravel())[0, 1]) < 0.03
        assert qvel.std() == pytest.approx(scale if name == "ant" else scale / np.sqrt(3), rel=0.03)
        assert (np.abs(qvel).max() > 3 * scale) == (name == "ant")


def test_dynamics_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hopper's step traces the dynamics once for its four calls, and MJX is restored afterwards."""
    theirs, traced = mjx_dynamics.forward, []

    def counted(model: Any, data: Any) -> Any:
        traced.append(data)
        return theirs(model, data)

    monkeypatch.setattr(mjx_dynamics, "forward", counted)
    adapter = make_mjx_adapter("hopper")
    state = jax.eval_shape(adapter.reset, jax.random.key(0))
    for number in (2, 3):  # two programs
        states = jax.tree.map(lambda x, n=number: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), state)
        jax.eval_shape(jax.vmap(adapter.step), states, jnp.zeros((number, 3)))
    assert len(traced) == 1
    assert mjx_dynamics.forward is counted


def test_options_reach_task_and_solver() -> None:
    adapter = make_mjx_adapter("hopper", as_hashable({"iterations": 4, "ls_iterations": 8, "healthy_z_range": [2, 9]}))
    assert (adapter.physics_model.opt.iterations, adapter.physics_model.opt.ls_iterations) == (4, 8)
    assert adapter.task == dataclasses.replace(make_mjx_adapter("hopper").task, healthy_z_range=(2.0, 9.0))
    assert adapter != make_mjx_adapter("hopper")
    assert MjxAdapter(adapter.task) != MjxAdapter(adapter.task)
    env = create_wrapped_mjx_env("hopper", exclude_current_positions_from_observation=False, max_episode_steps=7)
    assert (env.obs_space.shape, env.max_episode_steps) == ((12,), 7)
    assert env == create_env("mjx/hopper", exclude_current_positions_from_observation=False, max_episode_steps=7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hoper", {}, ("task of mjx", "'hoper'", "'hopper'")),
        ("reacher", {}, ("task of mjx", "'reacher'")),
        ("hopper", {"iteration": 4}, ("mjx/hopper", "'iteration'", "'iterations'")),
        ("hopper", {"histry": 4}, ("'histry'", "'history'")),
        ("hopper", {"iterations": 0}, ("iterations", "got 0")),
        ("hopper", {"frame_skip": 0}, ("frame_skip", "got 0")),
        ("hopper", {"healthy_z_range": [2, 1]}, ("healthy_z_range", "two numbers", "got (2, 1)")),
    ],
)
def test_errors_in_words(name: str, options: dict, message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        create_wrapped_mjx_env(name, **options)


def test_names_are_tasks_of_the_catalog() -> None:
    assert set(TASKS) - set(ENV_NAMES) == {"pusher", "reacher"}


def test_without_mjx_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco.mjx", None)
    with raises_naming(ImportError, "pip install mujoco-mjx"):
        _load_mjx.__wrapped__()


def test_nothing_is_printed_and_mujoco_is_imported_late() -> None:
    code = (
        "import sys, evorl.envs.mjx as m\nprint('mujoco' in sys.modules)\n"
        "m.create_wrapped_mjx_env('inverted_pendulum')\nprint('gymnasium' in sys.modules)"
    )
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert "warp" not in done.stderr


def test_bodies_are_told_as_mujoco_has_them() -> None:
    env = create_env("mjx/inverted_pendulum", parallel=3)
    physics = jax.eval_shape(lambda key: env.physics(env.reset(key)), jax.random.key(0))
    model = env.mujoco_model
    assert {name: x.shape for name, x in physics.items()} == {"qpos": (3, model.nq), "qvel": (3, model.nv)}
