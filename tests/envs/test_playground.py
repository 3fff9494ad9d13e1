"""The Playground adapter: the contract, termination and truncation, named observations, time limit, error messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, DictSpace, create_env
from evorl.envs import playground as adapter
from evorl.envs.playground import ENV_NAMES, PlaygroundAdapter, create_wrapped_playground_env
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import EnvContract, compiled_play
from tests.support.errors import raises_naming
from tests.support.optional_packages import need

need("mujoco_playground", "playground")


class TestCartpole(EnvContract):
    """Never terminates; the library's limit of 1000 steps is reduced to 20."""

    can_terminate = False
    tolerance = 1e-4

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build CartpoleSwingup with 20 steps."""
        return create_wrapped_playground_env(
            "CartpoleSwingup", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=20
        )

    def test_metrics_are_the_library_s_own(self, records: dict) -> None:
        metrics = records["metrics"]
        parts = [metrics[f"reward/{name}"] for name in ("upright", "centered", "small_control", "small_velocity")]
        np.testing.assert_allclose(np.prod(parts, axis=0), records["reward"], rtol=1e-4, atol=1e-5)


@pytest.fixture
def tilting() -> Iterator[str]:
    """Register a custom task: pole balancing that ends when the pole tilts, with dict observations."""
    from mujoco_playground import dm_control_suite
    from mujoco_playground._src.dm_control_suite import cartpole

    class Tilting(cartpole.Balance):
        def __init__(self, config: Any, config_overrides: Any = None) -> None:
            super().__init__(swing_up=False, sparse=False, config=config, config_overrides=config_overrides)

        def reset(self, rng: jax.Array) -> Any:
            return self._named(super().reset(rng))

        def step(self, state: Any, action: jax.Array) -> Any:
            state = super().step(state, action)
            tilted = jnp.abs(state.data.qpos[1]) > 0.03
            return self._named(state.replace(done=jnp.asarray(tilted, jnp.float32)))

        def _named(self, state: Any) -> Any:
            return state.replace(obs={"state": state.obs[:3], "privileged_state": state.obs})

    dm_control_suite.register_environment("Tilting", Tilting, cartpole.default_config)
    yield "Tilting"
    dm_control_suite._envs.pop("Tilting")
    dm_control_suite._cfgs.pop("Tilting")
    adapter._make_adapter.cache_clear()


def test_ends_are_told_apart_and_observations_have_names(tilting: str) -> None:
    env = create_env(f"playground/{tilting}", parallel=8, max_episode_steps=6)
    assert env.obs_space == DictSpace(
        {"state": Box(-np.inf, np.inf, (3,)), "privileged_state": Box(-np.inf, np.inf, (5,))}
    )
    start = env.reset(jax.random.key(0))
    assert env.obs_space.contains(start.obs).all()
    records = jax.tree.map(np.asarray, compiled_play(env, start, 30)[1])
    assert records["termination"].any()
    assert records["truncation"].any()
    assert (records["steps"][records["truncation"]] == 6).all()
    assert (records["steps"][records["termination"]] <= 6).all()


def test_the_clock_and_the_action_repeat_are_the_library_s() -> None:
    env = create_wrapped_playground_env("CartpoleBalance")
    assert env.max_episode_steps == 1000
    assert env.action_space == Box(-1.0, 1.0, (1,))
    repeated = create_wrapped_playground_env("CartpoleBalance", action_repeat=4, max_episode_steps=42)
    assert repeated.max_episode_steps == 11
    config = repeated.unwrapped.brax_env._config
    assert (config.episode_length, config.action_repeat, config.impl) == (42, 4, "jax")


def test_touch_sensors_compile_for_several_seeds() -> None:
    """With two batch axes, XLA for CPUs fails on the products that MJX computes for two touch sensors."""
    env = create_env("playground/FingerSpin", parallel=2)
    state = jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), 3))
    actions = jax.ShapeDtypeStruct((3, 2, 2), jnp.float32)
    jax.jit(jax.vmap(env.step)).lower(state, actions).compile()


def test_entries_of_the_config_are_options() -> None:
    env = create_wrapped_playground_env("CartpoleBalance", ctrl_dt=0.02, vision_config={"nworld": 7})
    config = env.unwrapped.brax_env._config
    assert (config.ctrl_dt, config.vision_config.nworld) == (0.02, 7)
    assert env == create_wrapped_playground_env("CartpoleBalance", ctrl_dt=0.02, vision_config={"nworld": 7})
    assert env != create_wrapped_playground_env("CartpoleBalance")
    assert PlaygroundAdapter(env.unwrapped.brax_env) != env.unwrapped


def test_the_list_of_names_is_the_library_s_own() -> None:
    from mujoco_playground import dm_control_suite

    assert set(dm_control_suite.ALL_ENVS) == set(ENV_NAMES)


def test_errors_name_the_nearest() -> None:
    with raises_naming(ValueError, "'CartpoleSwingUp'", "'CartpoleSwingup'"):
        create_wrapped_playground_env("CartpoleSwingUp")
    with raises_naming(ValueError, "'ctr_dt'", "'ctrl_dt'"):
        create_wrapped_playground_env("CartpoleSwingup", ctr_dt=0.01)
    with raises_naming(ValueError, "CartpoleSwingup", "{'vision_config': {'worlds': 7}}"):
        create_wrapped_playground_env("CartpoleSwingup", vision_config={"worlds": 7})
    with raises_naming(ValueError, "env.impl", "'jx'", "'jax'"):
        create_wrapped_playground_env("CartpoleSwingup", impl="jx")
    with raises_naming(ValueError, "env.impl=warp", "GPU", "env.impl=jax"):
        create_wrapped_playground_env("CartpoleSwingup", impl="warp")


def test_robots_that_cannot_be_loaded_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from mujoco_playground._src import mjx_env

    def no_network() -> None:
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(mjx_env, "ensure_menagerie_exists", no_network)
    with raises_naming(ValueError, "Go1JoystickFlatTerrain", "MuJoCo Menagerie", "CartpoleBalance"):
        create_wrapped_playground_env("Go1JoystickFlatTerrain")


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter._playground.cache_clear()
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    with raises_naming(ImportError, "pip install playground"):
        create_wrapped_playground_env("CartpoleSwingup", ctrl_dt=0.5)
    adapter._playground.cache_clear()


def test_bodies_are_told_as_mujoco_has_them() -> None:
    env = TestCartpole.make(3, AutoresetMode.DISABLED)
    physics = jax.eval_shape(lambda key: env.physics(env.reset(key)), jax.random.key(0))
    model = env.mujoco_model
    assert {name: x.shape for name, x in physics.items()} == {"qpos": (3, model.nq), "qvel": (3, model.nv)}
