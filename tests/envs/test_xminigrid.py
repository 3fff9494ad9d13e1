"""The XLand-MiniGrid adapter: the contract, all environments, one-hot cells, termination and truncation, errors."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, Discrete, create_env
from evorl.envs import xminigrid as adapter
from evorl.envs.wrappers import VectorEnv
from evorl.envs.xminigrid import ENV_NAMES, XMiniGridAdapter, create_wrapped_xminigrid_env
from tests.conformance.env import EnvContract, compiled_play
from tests.support.errors import raises_naming
from tests.support.optional_packages import need

need("xminigrid", "xminigrid")


class TestFourRooms(EnvContract):
    """Random play does not reach the goal in 12 steps."""

    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build FourRooms with 12 steps and most of the grid in view."""
        return create_wrapped_xminigrid_env(
            "MiniGrid-FourRooms", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=12, view_size=15
        )


def test_ends_are_told_apart_and_paid_as_the_library_pays() -> None:
    env = create_env("xminigrid/MiniGrid-Empty-5x5", parallel=16, max_episode_steps=15)
    records = jax.tree.map(np.asarray, compiled_play(env, env.reset(jax.random.key(0)), 150)[1])
    ended, cut, steps = records["termination"], records["truncation"], records["steps"]
    assert ended.any()
    assert (steps[cut] == 15).all()
    np.testing.assert_allclose(records["reward"][ended], 1.0 - 0.9 * steps[ended] / 15, rtol=1e-5)
    assert not records["reward"][~ended].any()
    assert (ended | cut)[steps == 15].all()


# One of each kind; others differ only in size.
@pytest.mark.parametrize(
    "name",
    ["BlockedUnlockPickUp", "DoorKey-5x5", "EmptyRandom-5x5", "LockedRoom", "MemoryS8", "Playground", "UnlockPickUp"],
)
def test_every_environment_has_stable_types(name: str) -> None:
    env = create_env(f"xminigrid/MiniGrid-{name}").env  # one environment: several have equally stable types
    state = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, state, jnp.zeros((), jnp.int32))
    types = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (state, after)]
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert types[0] == types[1]
    assert env.action_space == Discrete(6)
    assert env.max_episode_steps == env.unwrapped.params.max_steps


def test_cells_are_seen_one_hot() -> None:
    env = create_wrapped_xminigrid_env("MiniGrid-DoorKey-5x5", parallel=2)
    assert env.obs_space == Box(False, True, (7, 7, 25), bool)
    obs = np.asarray(env.reset(jax.random.key(0)).obs)
    np.testing.assert_array_equal(obs[..., :13].sum(axis=-1), 1.0)
    np.testing.assert_array_equal(obs[..., 13:].sum(axis=-1), 1.0)
    adapter = env.unwrapped
    both = jax.jit(lambda key: (adapter.grid_env.reset(adapter.params, key).observation, adapter.reset(key).obs))
    cells, seen = map(np.asarray, both(jax.random.key(1)))
    np.testing.assert_array_equal(seen[..., :13].argmax(axis=-1), cells[..., 0])
    np.testing.assert_array_equal(seen[..., 13:].argmax(axis=-1), cells[..., 1])


def test_the_list_of_names_is_the_library_s_own() -> None:
    import xminigrid

    assert {n for n in xminigrid.registered_environments() if not n.startswith("XLand")} == set(ENV_NAMES)


def test_equal_arguments_make_equal_environments() -> None:
    env = create_wrapped_xminigrid_env("MiniGrid-Unlock", view_size=5)
    assert env == create_wrapped_xminigrid_env("MiniGrid-Unlock", view_size=5)
    assert env != create_wrapped_xminigrid_env("MiniGrid-Unlock")
    inner = env.unwrapped
    assert XMiniGridAdapter(inner.grid_env, inner.params) == XMiniGridAdapter(inner.grid_env, inner.params)
    assert XMiniGridAdapter(inner.grid_env, inner.params) != inner


def test_errors_name_the_nearest() -> None:
    with raises_naming(ValueError, "'MiniGrid-Unlok'", "'MiniGrid-Unlock'"):
        create_wrapped_xminigrid_env("MiniGrid-Unlok")
    with raises_naming(ValueError, "'view_siz'", "'view_size'"):
        create_wrapped_xminigrid_env("MiniGrid-Unlock", view_siz=5)
    with raises_naming(ValueError, "XLand-MiniGrid-R1-9x9", "download", "MiniGrid-Unlock"):
        create_wrapped_xminigrid_env("XLand-MiniGrid-R1-9x9")
    with raises_naming(ValueError, "max_episode_steps", "got 0"):
        create_wrapped_xminigrid_env("MiniGrid-Unlock", max_episode_steps=0)


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter._xminigrid.cache_clear()
    monkeypatch.setitem(sys.modules, "xminigrid", None)
    with raises_naming(ImportError, "pip install xminigrid"):
        create_wrapped_xminigrid_env("MiniGrid-Unlock", view_size=9)
    adapter._xminigrid.cache_clear()
