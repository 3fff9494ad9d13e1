"""The Jumanji adapter: the contract, all environments, masks, joint actions, termination and truncation, errors."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.random_actions import random_actions
from evorl.envs import AutoresetMode, Box, Discrete, create_env
from evorl.envs import jumanji as adapter
from evorl.envs.action_conversion import ActionConversion
from evorl.envs.jumanji import ENV_NAMES, EXCLUDED, JumanjiAdapter, create_wrapped_jumanji_env
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import EnvContract, VectorEnvContract
from tests.support.errors import raises_naming
from tests.support.optional_packages import need

need("jumanji", "jumanji")


class TestSnake(VectorEnvContract):
    """Hits walls; the time limit of 8 steps also truncates."""

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build Snake with at most 8 steps."""
        return create_wrapped_jumanji_env(
            "Snake-v1", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=8
        )


class TestRubiksCube(EnvContract):
    """Actions of three parts, no mask; random turns seldom solve a cube that was turned twice."""

    num_steps = 40
    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build a cube with at most 10 turns."""
        return create_wrapped_jumanji_env(
            "RubiksCube-v0", parallel=parallel, autoreset_mode=autoreset_mode, max_episode_steps=10
        )


@pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")  # caused by BinPack
@pytest.mark.parametrize("name", ENV_NAMES)
def test_every_environment_has_stable_types(name: str) -> None:
    env = create_env(f"jumanji/{name}").env  # one environment: several have equally stable types
    state = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, state, jnp.zeros((), jnp.int32))
    types_of = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (state, after)]
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert types_of[0] == types_of[1]
    assert isinstance(env.action_space, Discrete)
    if name not in ("RubiksCube-v0", "RubiksCube-partly-scrambled-v0"):
        assert env.obs_space["action_mask"] == Box(False, True, (env.action_space.n,), jnp.bool_)


@pytest.mark.parametrize("name", ["Game2048-v1", "Tetris-v0", "Maze-v0", "Minesweeper-v0", "Knapsack-v1"])
def test_observations_are_in_their_space_and_masks_allow_what_is_allowed(name: str) -> None:
    """Observations are in their space, and legal actions never cause a step that the library treats as invalid."""
    env = create_env(f"jumanji/{name}", parallel=4)

    @jax.jit
    def play(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(state: Any, step_key: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            state = env.step(state, random_actions(env.action_space, step_key, 4, state.obs))
            inside = env.obs_space.contains(state.obs) & env.obs_space.contains(state.info.next_obs)
            return state, (inside, state.obs.action_mask.any(axis=-1))

        return jax.lax.scan(step, env.reset(key), jax.random.split(key, 60))[1]

    inside, may_act = play(jax.random.key(0))
    assert inside.all()
    assert may_act.all()


def test_actions_of_several_parts_are_numbered_as_their_masks() -> None:
    env = create_wrapped_jumanji_env("Minesweeper-v0").unwrapped
    state = env.reset(jax.random.key(0))
    assert state.obs.action_mask.all()
    after = env.step(state, ActionConversion(env.action_space).to_env(jnp.asarray(37)))
    assert not after.obs.action_mask[37]
    assert after.obs.action_mask.sum() == 99
    assert after.obs.board[3, 7] >= 0 or after.done  # a mine ends the episode
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(after.obs.board).ravel() != -1), [37])


def test_the_time_limit_of_the_library_is_a_truncation() -> None:
    """A time limit, which the library reports as termination, is a truncation."""
    import jumanji

    theirs = jumanji.make("RubiksCube-v0", time_limit=3)
    state, _ = jax.jit(theirs.reset)(jax.random.key(0))
    action = np.zeros(3, np.int32)
    step = jax.jit(theirs.step)
    for _ in range(3):
        state, timestep = step(state, action)
    assert bool(timestep.last())
    assert float(timestep.discount) == 0.0
    env = create_wrapped_jumanji_env("RubiksCube-v0", max_episode_steps=3)
    assert create_wrapped_jumanji_env("RubiksCube-v0").max_episode_steps == 200
    ours = env.reset(jax.random.key(0))
    for _ in range(3):
        ours = env.step(ours, jnp.zeros(1, jnp.int32))
    assert ours.info.truncation.all()
    assert not ours.info.termination.any()
    assert int(ours.info.next_obs.step_count[0]) == 3


def test_problems_are_generated_as_asked() -> None:
    env = create_wrapped_jumanji_env("Maze-v0", generator={"num_rows": 4, "num_cols": 6})
    assert env.obs_space["walls"].shape == (4, 6)
    assert env.max_episode_steps == 24
    assert env == create_wrapped_jumanji_env("Maze-v0", generator={"num_cols": 6, "num_rows": 4})
    assert env != create_wrapped_jumanji_env("Maze-v0")
    assert JumanjiAdapter(env.unwrapped.jumanji_env) != env.unwrapped


def test_entries_that_would_hide_methods_of_dicts_are_renamed() -> None:
    space = create_wrapped_jumanji_env("Knapsack-v1").obs_space
    assert set(space.spaces) == {"action_mask", "packed_items", "values_", "weights"}


def test_a_flat_observation_keeps_its_mask() -> None:
    env = create_wrapped_jumanji_env("Game2048-v1", flatten_obs=True)
    assert env.obs_space["observation"].shape == (16,)
    assert env.obs_space["action_mask"].shape == (4,)


def test_the_list_of_names_is_the_library_s_own() -> None:
    import jumanji

    assert set(jumanji.registered_environments()) == {*ENV_NAMES, *EXCLUDED}
    assert not set(ENV_NAMES) & set(EXCLUDED)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Connector-v3", "several agents"), ("JobShop-v0", "machine"), ("Cleaner-v0", "several agents")],
)
def test_what_is_left_out_cannot_be_stepped(name: str, reason: str) -> None:
    """Unsupported environments raise an error, also if their adapter is created directly."""
    import jumanji

    with raises_naming(ValueError, name, reason):
        create_wrapped_jumanji_env(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with raises_naming(ValueError, "separate masks"):
            JumanjiAdapter(jumanji.make(name))


def test_a_library_that_tells_truncation_is_believed() -> None:
    from jumanji import specs
    from jumanji.types import restart, truncation

    class Cut:
        """Environment whose every step is truncated."""

        action_spec = specs.DiscreteArray(2)
        observation_spec = specs.Array((1,), jnp.float32)

        def reset(self, key: jax.Array) -> Any:
            return {"key": key}, restart(jnp.zeros(1))

        def step(self, state: Any, action: jax.Array) -> Any:
            return state, truncation(jnp.asarray(2.0), jnp.ones(1))

    env = JumanjiAdapter(Cut())
    state = env.step(env.reset(jax.random.key(0)), jnp.asarray(1))
    assert state.info.truncation
    assert not state.info.termination
    assert float(state.reward) == 2.0


def test_errors_name_the_nearest() -> None:
    with raises_naming(ValueError, "'Snake-v2'", "'Snake-v1'"):
        create_wrapped_jumanji_env("Snake-v2")
    with raises_naming(ValueError, "'num_row'", "'num_rows'"):
        create_wrapped_jumanji_env("Snake-v1", num_row=5)
    with raises_naming(ValueError, "'num_row'", "'num_rows'"):
        create_wrapped_jumanji_env("Maze-v0", generator={"num_row": 5, "num_cols": 5})
    with raises_naming(ValueError, "Snake-v1", "env.generator"):
        create_wrapped_jumanji_env("Snake-v1", generator={"num_rows": 5})


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter._jumanji.cache_clear()
    monkeypatch.setitem(sys.modules, "jumanji", None)
    with raises_naming(ImportError, "pip install jumanji"):
        create_wrapped_jumanji_env("Snake-v1", num_rows=7)
    adapter._jumanji.cache_clear()
