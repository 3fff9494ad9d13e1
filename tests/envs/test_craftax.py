"""The Craftax adapter: the contract on the classic game, both games, termination and truncation, error messages."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, Discrete, EnvState, create_env
from evorl.envs import craftax as adapter
from evorl.envs.craftax import ENV_NAMES, CraftaxAdapter, create_wrapped_craftax_env
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import EnvContract, compiled_play
from tests.support.errors import raises_naming
from tests.support.optional_packages import need

need("craftax", "craftax")


class TestClassic(EnvContract):
    """Random play survives 12 steps."""

    num_steps = 30
    can_terminate = False
    tolerance = 1e-4

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build Craftax-Classic with 12 steps."""
        return create_wrapped_craftax_env(
            "Craftax-Classic-Symbolic-v1", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=12
        )

    def test_achievements_are_reached_once(self, records: dict) -> None:
        """Each achievement pays 1 once, and stays reached until the episode ends."""
        reached = sum(records["metrics"].values())
        assert reached.any()
        before = np.roll(np.where(records["done"], 0, reached), 1, axis=0)
        before[0] = 0
        np.testing.assert_allclose(np.round(records["reward"]), reached - before)  # changes of health pay tenths

    def test_death_is_a_termination(self, env: VectorEnv, start: EnvState) -> None:
        hurt = start.replace(env_state=start.env_state.replace(player_health=jnp.full(4, -5, jnp.int32)))
        _, records = compiled_play(env, hurt, self.num_steps)  # reuses the program of the other tests
        assert np.asarray(records.termination)[0].all()
        assert not np.asarray(records.truncation)[0].any()


def test_the_time_limit_is_the_library_s() -> None:
    env = create_env("Craftax-Classic-Symbolic-v1")
    assert env.max_episode_steps == 10_000
    assert env.obs_space == Box(0.0, 1.0, (1345,))
    assert env.action_space == Discrete(17)


def test_the_full_game_has_stable_types() -> None:
    env = create_env("craftax/Craftax-Symbolic-v1").env  # one environment: several have equally stable types
    assert env.max_episode_steps == 100_000
    state = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, state, jnp.zeros((), jnp.int32))
    types = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (state, after)]
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert types[0] == types[1]
    assert env.action_space == Discrete(43)
    assert len(state.info.metrics) == 67


def test_parameters_are_options() -> None:
    env = create_wrapped_craftax_env("Craftax-Classic-Symbolic-v1", zombie_health=9)
    assert env.unwrapped.params.zombie_health == 9
    assert env == create_wrapped_craftax_env("Craftax-Classic-Symbolic-v1", zombie_health=9)
    assert env != create_wrapped_craftax_env("Craftax-Classic-Symbolic-v1")
    inner = env.unwrapped.craftax_env
    assert CraftaxAdapter(inner) != env.unwrapped


def test_nothing_is_printed_while_it_is_imported() -> None:
    code = "from evorl.envs import create_env; create_env('craftax/Craftax-Classic-Symbolic-v1')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == ""


def test_errors_name_the_nearest() -> None:
    with raises_naming(ValueError, "Craftax-Symbolic-v2", f"'{ENV_NAMES[0]}'"):
        create_wrapped_craftax_env("Craftax-Symbolic-v2")
    with raises_naming(ValueError, "Craftax-Classic-Pixels-v1", "Craftax-Classic-Symbolic-v1"):
        create_wrapped_craftax_env("Craftax-Classic-Pixels-v1")
    with raises_naming(ValueError, "'zombie_healt'", "'zombie_health'"):
        create_wrapped_craftax_env("Craftax-Classic-Symbolic-v1", zombie_healt=1)


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter._craftax_env_module.cache_clear()
    monkeypatch.setitem(sys.modules, "craftax", None)
    with raises_naming(ImportError, "pip install craftax"):
        create_wrapped_craftax_env("Craftax-Symbolic-v1", god_mode=True)
    adapter._craftax_env_module.cache_clear()
