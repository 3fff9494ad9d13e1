"""The engine of vector environments: compiled programs, keys, seeds, gradients.

``tests/conformance/env.py`` tests the contract of every mode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs import AutoresetMode, Box, EnvState, create_wrapped_gymnax_env
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import (
    VECTOR_ENVS,
    EpisodeWrapper,
    FastVmapAutoResetWrapper,
    VectorEnv,
    VmapAutoResetWrapper,
    VmapWrapper,
)
from evorl.ops.platform import compiled_for
from evorl.types import PyTreeDict
from tests.conformance.env import VectorEnvContract
from tests.support.errors import raises_naming
from tests.support.probe_envs import ProbeEnv, make_probe
from tests.support.small_workflows import assert_identical
from tests.support.toy_envs import ToyEnv, TugOfWar, toy_state, with_starts


class Walk(ToyEnv):
    """A random walk from a random start. Its reset computes a hyperbolic tangent, its step does not."""

    obs_space = Box(-np.inf, np.inf, (3,))
    action_space = Box(-1, 1, (3,))

    def reset(self, key: jax.Array) -> EnvState:
        """Return tanh of uniform numbers."""
        start_key, walk_key = jax.random.split(key)
        position = jnp.tanh(jax.random.uniform(start_key, (3,)))
        return toy_state(PyTreeDict(position=position, key=walk_key), position)

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Add normal noise and the action."""
        state = env_state.env_state
        walk_key, noise_key = jax.random.split(state.key)
        position = state.position + action + jax.random.normal(noise_key, (3,))
        return toy_state(PyTreeDict(position=position, key=walk_key), position, position.sum())


def walk(cls: type[VectorEnv], num_envs: int = 4, limit: int = 3) -> VectorEnv:
    return cls(EpisodeWrapper(Walk(), limit), num_envs)


def play(env: VectorEnv, state: EnvState, num_steps: int):
    def step(state: EnvState, _: None):
        state = env.step(state, jnp.zeros((state.done.shape[0], 3)))
        return state, PyTreeDict(obs=state.obs, next_obs=state.info.next_obs, done=state.done)

    return jax.lax.scan(step, state, length=num_steps)


def loop_depths(program: str, operation: str) -> list[int]:
    """Return the loop nesting depth of every ``operation`` in a compiled program."""
    computations = dict(re.findall(r"^(?:ENTRY )?(%[\w.\-]+) \(.*?\{\n(.*?)^\}", program, re.DOTALL | re.MULTILINE))

    def depths(name: str) -> set[int]:
        result = {0} if re.search(rf"^ENTRY {re.escape(name)} ", program, re.MULTILINE) else set()
        for caller, text in computations.items():
            for relation in re.findall(rf"(\w+)={re.escape(name)}(?![\w.\-])", text):
                result |= {depth + (relation == "body") for depth in depths(caller)}
        return result

    return sorted(d for name, text in computations.items() if f" {operation}(" in text for d in depths(name))


@pytest.fixture
def on_a_cpu() -> Iterator[None]:
    """Starts are computed as on a CPU, on any device."""
    with compiled_for("cpu"):
        yield


@pytest.mark.parametrize("num_seeds", [None, 2])
def test_a_reset_is_computed_only_where_it_is_needed(num_seeds: int | None, on_a_cpu: None) -> None:
    """In a rollout program the reset runs in a conditional loop within the loop over steps."""
    env = walk(VmapAutoResetWrapper)

    def run(state: EnvState):
        return play(env, state, 5)

    if num_seeds is None:
        program = jax.jit(run).lower(env.reset(jax.random.key(0)))
    else:
        program = jax.jit(jax.vmap(run)).lower(jax.vmap(env.reset)(jax.random.split(jax.random.key(0), num_seeds)))
    depths = loop_depths(program.compile().as_text(), "tanh")
    assert depths
    assert min(depths) == 2


def test_loop_depths_sees_a_reset_at_every_step() -> None:
    """The measured depth is 1 for a program that resets at every step."""
    env = Walk()

    def every_step(state: EnvState, key: jax.Array):
        fresh = env.reset(key)
        return jax.tree.map(lambda a, b: jnp.where(state.reward > 0, a, b), fresh, env.step(state, jnp.zeros(3))), None

    keys = jax.random.split(jax.random.key(0), 5)
    program = jax.jit(lambda s: jax.lax.scan(every_step, s, keys)).lower(env.reset(jax.random.key(1)))
    assert min(loop_depths(program.compile().as_text(), "tanh")) == 1


def test_starts_are_renewed_for_all_when_one_needs_it(on_a_cpu: None) -> None:
    env = make_probe("value_is_observation", 4)
    state = env.reset(jax.random.key(0))
    assert not state._internal.next_is_fresh.any()
    # Only environment 0 has ended: it uses its prepared start, which is then no longer fresh.
    stepped = jax.vmap(env.env.step)(state.replace(_internal=state._internal.inner), jnp.zeros(4, jnp.int32))
    stepped = stepped.replace(done=jnp.array([True, False, False, False]))
    state = env._continue(state, stepped)
    np.testing.assert_array_equal(state._internal.next_is_fresh, [False, True, True, True])
    np.testing.assert_array_equal(state._internal.episode, [1, 0, 0, 0])


def test_a_state_goes_on_under_either_policy_of_starts() -> None:
    """A checkpoint of one platform is continued on another one, with the same episodes."""
    lazy = walk(VmapAutoResetWrapper)
    eager = with_starts(lazy, "every_step")
    assert lazy != eager
    assert (lazy.starts, eager.starts) == (None, "every_step")
    state = lazy.reset(jax.random.key(0))
    assert jax.tree.structure(state) == jax.tree.structure(eager.reset(jax.random.key(0)))
    whole = jax.jit(play, static_argnums=(0, 2))
    _, expected = whole(lazy, state, 16)
    pieces = []
    for env in (lazy, eager, eager, lazy):
        state, records = whole(env, state, 4)
        pieces.append(records)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda *x: np.concatenate(x), *pieces), expected)
    assert expected.done.sum() == 5 * 4


def test_keys_of_rows() -> None:
    env = walk(VmapAutoResetWrapper)
    key = jax.random.key(1)
    state = env.reset(key)
    np.testing.assert_array_equal(state._internal.env_id, range(4))
    row_keys = jnp.stack([jax.random.fold_in(key, i) for i in range(4)])
    np.testing.assert_array_equal(jax.random.key_data(state._internal.key), jax.random.key_data(row_keys))
    np.testing.assert_array_equal(env.reset(row_keys).obs, state.obs)
    np.testing.assert_array_equal(env.reset(row_keys[2:]).obs, state.obs[2:])
    assert len(np.unique(np.asarray(state.obs))) == 12


def test_fast_restores_no_keys() -> None:
    env = walk(FastVmapAutoResetWrapper, num_envs=2)
    _, records = jax.jit(lambda s: play(env, s, 6))(env.reset(jax.random.key(0)))
    np.testing.assert_array_equal(records.obs[2], records.obs[5])  # the first state again
    assert not np.isclose(records.obs[0], records.obs[3]).any()  # different noise


class Pair(ToyEnv):
    """Observes and stores two uint32 numbers, next to a key, if ``key_kind`` is not empty: it adds bits of the key."""

    obs_space = Box(0, 100, (2,), jnp.uint32)
    action_space = Box(-1, 1, (3,))

    def __init__(self, key_kind: str) -> None:
        self.key_kind = key_kind

    def reset(self, key: jax.Array) -> EnvState:
        """Return 7 and 8."""
        pair = jnp.array([7, 8], jnp.uint32)
        if self.key_kind == "raw":
            return toy_state(PyTreeDict(key=jax.random.key_data(key)), pair)
        return toy_state(PyTreeDict(key=key, pair=pair), pair)

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        """Return a random pair."""
        state = env_state.env_state
        pair = jax.random.randint(state.key, (2,), 0, 100).astype(jnp.uint32)
        return toy_state(state, pair)

    def _identity(self) -> str:
        return self.key_kind


@pytest.mark.parametrize("key_kind", ["typed", "raw"])
def test_fast_changes_keys_only(key_kind: str) -> None:
    env = wrap_env(Pair(key_kind), parallel=2, autoreset_mode="fast", max_episode_steps=2, history=2)
    state, _ = jax.jit(lambda s: play(env, s, 2))(env.reset(jax.random.key(0)))
    np.testing.assert_array_equal(state.obs, [[7, 8, 7, 8]] * 2)
    np.testing.assert_array_equal(state._internal.inner.earlier_frames, [[7, 8]] * 2)
    np.testing.assert_array_equal(state.env_state.get("pair", [[7, 8]] * 2), [[7, 8]] * 2)
    _, records = jax.jit(lambda s: play(env, s, 4))(env.reset(jax.random.key(0)))
    assert (records.next_obs[0, :, 2:] != records.next_obs[2, :, 2:]).any()  # the key of the second episode differs


def test_gradients_pass_through_steps_and_stop_at_resets() -> None:
    for cls, expected in ((VmapWrapper, 1.0), (VmapAutoResetWrapper, 1.0)):
        env = walk(cls, num_envs=2, limit=2)
        state = env.reset(jax.random.key(0))

        def last_reward(action: jax.Array, env: VectorEnv = env, state: EnvState = state) -> jax.Array:
            return env.step(env.step(state, action), jnp.zeros((2, 3))).reward.sum()

        np.testing.assert_allclose(jax.jit(jax.grad(last_reward))(np.zeros((2, 3))), np.full((2, 3), expected))


def test_nested_vmap_of_seeds_and_members() -> None:
    env = walk(VmapAutoResetWrapper, num_envs=2)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    batched = jax.jit(jax.vmap(jax.vmap(lambda key: play(env, env.reset(key), 7)[1].obs)))(keys)
    alone = jax.jit(lambda key: play(env, env.reset(key), 7)[1].obs)(keys[1, 2])
    np.testing.assert_allclose(np.asarray(batched)[1, 2], alone, rtol=1e-6)


def test_an_ended_row_is_revived_by_partial_reset() -> None:
    env = make_probe("discounting", 3, AutoresetMode.DISABLED)
    state = env.reset(jax.random.key(0))
    for _ in range(3):
        state = env.step(state, jnp.zeros(3, jnp.int32))
    assert state.done.all()
    state = env.partial_reset(state, np.array([False, True, False]), jax.random.PRNGKey(1))
    np.testing.assert_array_equal(state.done, [True, False, True])
    np.testing.assert_array_equal(state.info.steps, [2, 0, 2])
    state = env.step(state, jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(state.info.steps, [2, 1, 2])


@pytest.mark.parametrize("mask", [np.ones((3, 1), bool), np.ones(2, bool), True, np.array([0, 1, 1]), np.ones(3)])
def test_a_mask_is_one_bool_for_each_environment(mask: np.ndarray) -> None:
    """Masks that are not ``bool[num_envs]`` are rejected: columns would broadcast, indices would be used as flags."""
    env = make_probe("discounting", 3)
    state = env.reset(jax.random.key(0))
    with raises_naming(ValueError, "mask bool[3]", f"got {jnp.asarray(mask).dtype}{list(np.shape(mask))}"):
        env.partial_reset(state, mask, jax.random.key(1))


def test_integer_actions_are_not_floats() -> None:
    """Each environment failed in its own way, or took the number for another action."""
    env = make_probe("best_action", 3)
    with raises_naming(ValueError, "int32 actions", "got float32", "astype(int32)"):
        env.step(env.reset(jax.random.key(0)), np.zeros(3, np.float32))


@pytest.mark.parametrize("shape", [(3, 1), (2,), ()])
def test_actions_are_one_for_each_environment(shape: tuple[int, ...]) -> None:
    env = make_probe("best_action", 3)
    with raises_naming(ValueError, "actions of shape [(3,)]", f"got {shape}"):
        env.step(env.reset(jax.random.key(0)), np.zeros(shape, np.int32))


def test_bad_arguments() -> None:
    with raises_naming(TypeError, "single evorl Env"):
        VmapWrapper(make_probe("discounting"), 2)
    with raises_naming(ValueError, "num_envs", "got 0"):
        VmapWrapper(ProbeEnv("discounting"), 0)
    with raises_naming(TypeError, "key"):
        make_probe("discounting").reset(jnp.zeros(3))


class TestAgentsOfCopies(VectorEnvContract):
    """Two agents per copy, ended by a limit of 5 steps or by themselves."""

    @staticmethod
    def make(parallel: int, autoreset_mode: AutoresetMode) -> VectorEnv:
        """Build environments with both agents."""
        return VECTOR_ENVS[autoreset_mode](EpisodeWrapper(TugOfWar(), 5), parallel)

    def test_agents_of_a_copy_meet_each_other_and_no_one_else(self, env: VectorEnv, start: EnvState) -> None:
        np.testing.assert_array_equal(start.obs[:, 1], [0, 1, 0, 1])
        np.testing.assert_array_equal(start.obs[::2, 0], -start.obs[1::2, 0])
        assert float(start.obs[0, 0]) != float(start.obs[2, 0])
        after = env.step(start, jnp.array([1, 0, 0, 1]))
        np.testing.assert_array_equal(after.reward, [1, -1, -1, 1])
        rope = after.info.next_obs[:, 0]
        np.testing.assert_array_equal(rope[::2], -rope[1::2])
        assert (abs(rope - start.obs[:, 0] - jnp.array([1, -1, -1, 1])) < 0.1 + 1e-6).all()

    def test_agents_of_a_copy_end_and_start_together(self, records: dict) -> None:
        for name in ("done", "termination", "truncation", "steps"):
            np.testing.assert_array_equal(records[name][:, ::2], records[name][:, 1::2])
        np.testing.assert_array_equal(records["obs"][..., ::2, 0], -records["obs"][..., 1::2, 0])
        np.testing.assert_array_equal(records["reward"][:, ::2], -records["reward"][:, 1::2])

    def test_one_agent_s_mask_starts_its_copy_anew(self, env: VectorEnv, start: EnvState) -> None:
        state = env.step(start, jnp.zeros(4, jnp.int32))
        after = env.partial_reset(state, np.array([False, False, False, True]), jax.random.key(4))
        np.testing.assert_array_equal(after.info.steps, [1, 1, 0, 0])

    def test_rows_are_whole_copies(self, env: VectorEnv, start: EnvState) -> None:
        with raises_naming(ValueError, "2 agents", "multiple of 2", "got 3"):
            self.make(3, AutoresetMode.NORMAL)
        with raises_naming(ValueError, "3 rows", "2 agents"):
            env.step(jax.tree.map(lambda x: x[:3], start), jnp.zeros(3, jnp.int32))
        with raises_naming(ValueError, "one of 2 agents", "vectorized environment"):
            env.env.reset(jax.random.key(0))


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda: wrap_env(Walk(), parallel=6, max_episode_steps=5), 5),
        (lambda: wrap_env(Walk(), parallel=6, max_episode_steps=9, action_repeat=2, history=3), 5),
        (lambda: wrap_env(Walk(), parallel=6, max_episode_steps=5, autoreset_mode="fast"), 5),
        (lambda: wrap_env(TugOfWar(), parallel=6, max_episode_steps=3), 3),  # 3 copies with 2 agents
        (lambda: create_wrapped_gymnax_env("Pendulum-v1", parallel=6, max_episode_steps=5), 5),  # has its own counter
    ],
)
def test_first_episodes_end_at_different_times(make: Callable[[], VectorEnv], limit: int) -> None:
    env = make()
    state = env.at_random_steps(env.reset(jax.random.key(0)), jax.random.key(1))
    assert_identical(state, env.at_random_steps(env.reset(jax.random.key(0)), jax.random.key(1)))
    first = np.asarray(state._internal.inner.episode_steps)
    assert len(set(first)) > 1
    assert np.all((first >= 0) & (first < limit))
    actions = jax.tree.map(lambda spec: jnp.zeros((6, *spec.shape), spec.dtype), env.action_space.spec)
    _, dones = jax.lax.scan(lambda s, _: (env.step(s, actions),) * 2, state, length=2 * limit)
    times = first + 1 + np.arange(2 * limit)[:, None]
    np.testing.assert_array_equal(dones.info.truncation, times % limit == 0)
    np.testing.assert_array_equal(dones.done, dones.info.truncation)
