"""The JaxMARL adapter: agents as rows, masks, termination and truncation, error messages."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents.random_actions import random_actions
from evorl.envs import AutoresetMode, Box, DictSpace, Discrete, create_env
from evorl.envs import jaxmarl as adapter
from evorl.envs.jaxmarl import ENV_NAMES, EXCLUDED, JaxmarlAdapter, create_wrapped_jaxmarl_env
from evorl.envs.wrappers import VectorEnv
from tests.conformance.env import EnvContract
from tests.support.errors import raises_naming
from tests.support.optional_packages import need

need("jaxmarl", "jaxmarl")

SMALL_BATTLE = {"num_allies": 2, "num_enemies": 2, "world_steps_per_env_step": 1}


class TestSpread(EnvContract):
    """Two agents per copy; episodes end only by the time limit."""

    num_steps = 20
    can_terminate = False

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build Spread with at most 8 steps."""
        return create_wrapped_jaxmarl_env(
            "MPE_simple_spread_v3",
            parallel=parallel,
            autoreset_mode=autoreset_mode,
            max_episode_steps=8,
            num_agents=2,
            num_landmarks=2,
            local_ratio=1.0,
        )

    def test_rows_are_what_the_library_tells_of_agents(self, env: VectorEnv, records: dict[str, Any]) -> None:
        """Two steps of one copy equal the library's environment with the copy's keys; each agent has its own reward."""
        theirs, two = env.unwrapped.jaxmarl_env, np.array([1, 4, 2, 3])  # pyright: ignore[reportAttributeAccessIssue]
        state = env.reset(jax.random.key(3))
        key = jax.random.fold_in(state._internal.key[2], 0)
        start_key, key = jax.random.split(key)
        seen, game = jax.jit(theirs.reset)(start_key)
        step_theirs = jax.jit(theirs.step_env)
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(state.obs)[2:], [seen[agent] for agent in theirs.agents], atol=1e-6)
            step_key, key = jax.random.split(key)
            actions = dict(zip(theirs.agents, two[2:], strict=True))
            seen, game, paid, _, _ = step_theirs(step_key, game, actions)
            state = env.step(state, two)
            np.testing.assert_allclose(
                np.asarray(state.reward)[2:], [paid[agent] for agent in theirs.agents], atol=1e-5
            )
        assert (records["obs"][:, 0] != records["obs"][:, 1]).any()
        np.testing.assert_array_equal(records["done"][:, ::2], records["done"][:, 1::2])


class TestSpreadWithWorldState(TestSpread):
    """The same, with the observations of all agents as world state."""

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build Spread with at most 8 steps."""
        return create_wrapped_jaxmarl_env(
            "MPE_simple_spread_v3",
            parallel=parallel,
            autoreset_mode=autoreset_mode,
            max_episode_steps=8,
            num_agents=2,
            num_landmarks=2,
            world_state=True,
        )

    def test_rows_are_what_the_library_tells_of_agents(self, env: VectorEnv, records: dict[str, Any]) -> None:
        """The world state is equal for the agents of a copy, and consists of their observations."""
        state = env.reset(jax.random.key(3))
        for _ in range(2):
            obs, world = (np.asarray(state.obs[name]) for name in ("observation", "world_state"))
            np.testing.assert_array_equal(world, np.repeat(obs.reshape(2, -1), 2, axis=0))
            state = env.step(state, np.array([1, 4, 2, 3]))
        assert (world[0] != world[2]).any(), "copies differ"


def test_the_world_state_of_the_library_is_used_where_there_is_one() -> None:
    env = create_wrapped_jaxmarl_env("HeuristicEnemySMAX", parallel=4, world_state=True, **SMALL_BATTLE)
    assert set(env.obs_space.spaces) == {"observation", "action_mask", "world_state"}
    theirs = env.unwrapped.jaxmarl_env  # pyright: ignore[reportAttributeAccessIssue]  # of this adapter only
    state = jax.jit(env.reset)(jax.random.key(0))
    state = jax.jit(env.step)(state, jnp.zeros(4, jnp.int32))
    expected = jax.vmap(theirs.get_world_state)(state.env_state.game)
    np.testing.assert_array_equal(state.obs.world_state, expected)


@pytest.mark.parametrize("name", ENV_NAMES)
def test_every_environment_has_stable_types(name: str) -> None:
    options = SMALL_BATTLE if "SMAX" in name else {}
    env = create_env(f"jaxmarl/{name}", parallel=12, **options)
    state = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, state, jnp.zeros(12, jnp.int32))
    types_of = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (state, after)]
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert types_of[0] == types_of[1]
    assert isinstance(env.action_space, Discrete)
    has_mask = name in ("SMAX", "HeuristicEnemySMAX", "hanabi")
    assert has_mask == isinstance(env.obs_space, DictSpace)
    if isinstance(env.obs_space, DictSpace):
        assert env.obs_space["action_mask"] == Box(False, True, (env.action_space.n,), jnp.bool_)


def test_agents_that_keep_to_their_masks_play_to_the_end() -> None:
    """In a small game of Hanabi the waiting agent has only the no-op, and both agents get equal rewards and ends."""
    game = {"num_colors": 2, "num_ranks": 2, "hand_size": 2, "max_info_tokens": 3, "max_life_tokens": 1}
    env = create_wrapped_jaxmarl_env("hanabi", parallel=4, num_cards_of_rank=[2, 1], **game)
    assert env.max_episode_steps is None

    def step(state: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
        may_do = state.obs.action_mask
        state = env.step(state, random_actions(env.action_space, key, 4, state.obs))
        inside = env.obs_space.contains(state.obs) & env.obs_space.contains(state.info.next_obs)
        return state, (may_do, inside, state.reward, state.info.termination, state.info.truncation)

    play = jax.jit(lambda key: jax.lax.scan(step, env.reset(key), jax.random.split(key, 30))[1])
    may_do, inside, reward, termination, truncation = map(np.asarray, play(jax.random.key(0)))
    assert inside.all()
    waits = may_do[..., -1] & (may_do.sum(axis=-1) == 1)
    np.testing.assert_array_equal(waits[:, ::2], ~waits[:, 1::2])
    np.testing.assert_array_equal(reward[:, ::2], reward[:, 1::2])
    np.testing.assert_array_equal(termination[:, ::2], termination[:, 1::2])
    assert termination.any(axis=0).all()
    assert not truncation.any()


@pytest.mark.parametrize(("name", "options"), [("MPE_simple_v3", {}), ("SMAX", SMALL_BATTLE), ("overcooked_v2", {})])
def test_the_clock_is_as_long_as_that_of_the_library(name: str, options: dict[str, Any]) -> None:
    """The time limit equals the library's: one step more than ``max_steps`` where it compares before it counts."""
    import jaxmarl

    theirs = jaxmarl.make(name, max_steps=3, **options)
    usual = jaxmarl.make(name, **options).max_steps
    _, game = jax.jit(theirs.reset)(jax.random.key(0))
    actions = dict.fromkeys(theirs.agents, jnp.asarray(4))  # no movement
    step = jax.jit(theirs.step_env)
    for count in range(1, 6):
        _, game, _, dones, _ = step(jax.random.key(count), game, actions)
        if dones["__all__"]:
            break
    env = create_wrapped_jaxmarl_env(name, parallel=len(theirs.agents), **options)
    assert env.max_episode_steps == usual + count - 3


def test_equal_arguments_make_equal_environments() -> None:
    env = create_wrapped_jaxmarl_env("MPE_simple_spread_v3", parallel=3)
    assert env == create_wrapped_jaxmarl_env("MPE_simple_spread_v3", parallel=3)
    assert env != create_wrapped_jaxmarl_env("MPE_simple_spread_v3", parallel=2, num_agents=2)
    inner: Any = env.unwrapped
    assert JaxmarlAdapter(inner.jaxmarl_env) != inner
    assert create_wrapped_jaxmarl_env("HeuristicEnemySMAX", parallel=3, scenario="3m").unwrapped.num_agents == 3


def test_actions_may_be_real_numbers() -> None:
    env = create_wrapped_jaxmarl_env("MPE_simple_v3", parallel=2, action_type="Continuous")
    assert env.action_space == Box(-1.0, 1.0, (5,))


def test_the_list_of_names_is_the_library_s_own() -> None:
    import jaxmarl

    of_mpe = ("adversary_v3", "crypto_v3", "push_v3", "speaker_listener_v4", "tag_v3", "world_comm_v3")
    unlike = {f"MPE_simple_{name}" for name in of_mpe}
    theirs = {name for name in jaxmarl.registered_envs if not name.startswith("JaxRobotarium")}
    assert theirs == {*ENV_NAMES, *EXCLUDED} | unlike
    assert not set(ENV_NAMES) & set(EXCLUDED)
    for name in unlike:
        with raises_naming(ValueError, "Simple", "observation_space", "_0 is Box"):
            create_wrapped_jaxmarl_env(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("MPE_simple_spred_v3", {}, ("'MPE_simple_spred_v3'", "'MPE_simple_spread_v3'")),
        ("MPE_simple_push_v3", {}, ("observation_space", "adversary_0", "agent_0")),
        ("MPE_simple_facmac_v1", {}, ("MPE_simple_facmac_v1", "predators")),
        ("JaxRobotarium_rware", {}, ("JaxMARL environment", "'JaxRobotarium_rware'")),
        ("MPE_simple_spread_v3", {"parallel": 4}, ("3 agents", "multiple of 3", "got 4")),
        ("MPE_simple_spread_v3", {"parallel": 3, "num_agent": 2}, ("'num_agent'", "'num_agents'")),
        ("MPE_simple_spread_v3", {"parallel": 3, "world_state": 2}, ("env.world_state", "got 2")),
        (
            "MPE_simple_spread_v3",
            {"parallel": 3, "world_state": False, "max_steps": 2},
            ("'max_steps'", "'max_episode_steps'"),
        ),
        (
            "MPE_simple_reference_v3",
            {"parallel": 3, "num_agents": 3},
            ("MPE_simple_reference_v3", "num_agents", "2 agents"),
        ),
        ("SMAX", {"parallel": 3, "scenario": "3mm"}, ("env.scenario", "'3mm'", "'3m'")),
    ],
)
def test_errors_in_words(name: str, options: dict[str, Any], message: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *message):
        create_wrapped_jaxmarl_env(name, **options)


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter._jaxmarl.cache_clear()
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with raises_naming(ImportError, "pip install jaxmarl"):
        create_wrapped_jaxmarl_env("MPE_simple_v3", num_landmarks=2)
    adapter._jaxmarl.cache_clear()
