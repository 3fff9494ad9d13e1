"""Contract of simulators on the host. The test of an adapter provides them and inherits the rest."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from evorl.envs.host.host_vector_env import HostEnvError, HostVectorEnv
from tests.support.errors import raises_naming

NUM_ENVS = 3
SEEDS = np.array([11, 2**40 + 5, 7], np.uint64)
OTHER_SEEDS = np.array([21, 22, 23], np.uint64)
MIDDLE_ROW = np.array([False, True, False])


def random_actions(env: HostVectorEnv, step: int) -> Any:
    """Sample actions ``[B, ...]`` that depend only on the step."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), step), env.num_envs)
    return jax.tree.map(np.asarray, jax.vmap(env.action_space.sample)(keys))


def play(env: HostVectorEnv, num_steps: int, first: int = 0) -> list[tuple]:
    """Play random actions and reset ended environments; return a tuple for each step."""
    answers = []
    for step in range(first, first + num_steps):
        answers.append(env.step(random_actions(env, step)))
        ended = answers[-1][2] | answers[-1][3]
        if ended.any():
            env.partial_reset(ended, np.arange(env.num_envs, dtype=np.uint64) + np.uint64(100 * step))
    return answers


def assert_same(a: Any, b: Any, rows: Any = slice(None)) -> None:
    """Assert bitwise equality in the given rows."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x)[rows], np.asarray(y)[rows]), a, b)


class HostVectorEnvContract:
    """Inherit and define ``make``; set the attributes where the defaults do not fit."""

    num_steps = 40  # steps of random actions, with several episode ends
    starts_by_seed = True  # also for the rows of a partial reset

    @staticmethod
    def make(num_envs: int) -> HostVectorEnv:
        """Create new simulators."""
        raise NotImplementedError

    @pytest.fixture
    def env(self) -> Any:
        """Create simulators that are closed after the test."""
        env = self.make(NUM_ENVS)
        yield env
        env.close()

    @pytest.fixture
    def twin(self) -> Any:
        """Create a second instance of the simulators."""
        env = self.make(NUM_ENVS)
        yield env
        env.close()

    def test_answers_are_as_the_spaces_say(self, env: HostVectorEnv) -> None:
        starts = env.reset(SEEDS)
        answers = play(env, self.num_steps)
        for obs in [starts, *(answer[0] for answer in answers)]:
            jax.tree.map(self._check_leaf, env.obs_space.spec, obs)
            assert np.all(env.obs_space.contains(obs))
        for _, reward, termination, truncation, info in answers:
            assert (reward.shape, reward.dtype) == ((NUM_ENVS,), np.float32)
            assert termination.dtype == truncation.dtype == np.bool_
            assert termination.shape == truncation.shape == (NUM_ENVS,)
            for name, (shape, dtype) in env.info_spec.items():
                assert (info[name].shape, info[name].dtype) == ((NUM_ENVS, *shape), dtype)
        assert any((answer[2] | answer[3]).any() for answer in answers), "no episode ended: let more steps be played"

    @staticmethod
    def _check_leaf(spec: jax.ShapeDtypeStruct, leaf: np.ndarray) -> None:
        assert isinstance(leaf, np.ndarray)
        assert (leaf.shape, leaf.dtype) == ((NUM_ENVS, *spec.shape), spec.dtype)

    def test_a_step_before_the_first_reset_is_refused(self, env: HostVectorEnv) -> None:
        with raises_naming(HostEnvError, "step", "reset"):
            env.step(random_actions(env, 0))

    def test_same_seeds_and_actions_give_the_same(self, env: HostVectorEnv, twin: HostVectorEnv) -> None:
        starts = env.reset(SEEDS), twin.reset(SEEDS)
        assert_same(*starts)
        first, second = play(env, self.num_steps), play(twin, self.num_steps)
        assert_same(first, second)
        assert_same(env.reset(SEEDS), starts[0])
        assert_same(play(env, self.num_steps), first)

    def test_other_seeds_give_others(self, env: HostVectorEnv) -> None:
        first, second = env.reset(SEEDS), env.reset(OTHER_SEEDS)
        assert any(np.any(x != y) for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))

    def test_partial_reset_leaves_other_rows_alone(self, env: HostVectorEnv, twin: HostVectorEnv) -> None:
        env.reset(SEEDS)
        twin.reset(SEEDS)
        for step in range(3):
            assert_same(env.step(random_actions(env, step)), twin.step(random_actions(twin, step)))
        start = env.partial_reset(MIDDLE_ROW, OTHER_SEEDS)
        jax.tree.map(self._check_leaf, env.obs_space.spec, start)
        mine, its = env.step(random_actions(env, 3)), twin.step(random_actions(twin, 3))
        assert_same(mine, its, ~MIDDLE_ROW)
        assert any(
            np.any(x[MIDDLE_ROW] != y[MIDDLE_ROW]) for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(its))
        ), "the row of the partial reset went on as if nothing had happened"

    def test_partial_reset_starts_by_its_seed(self, env: HostVectorEnv, twin: HostVectorEnv) -> None:
        if self.starts_by_seed:
            expected = twin.reset(OTHER_SEEDS)
            env.reset(SEEDS)
            play(env, 3)
            assert_same(env.partial_reset(MIDDLE_ROW, OTHER_SEEDS), expected, MIDDLE_ROW)
        else:  # from the row's own random stream
            env.reset(SEEDS)
            twin.reset(SEEDS)
            starts = env.partial_reset(MIDDLE_ROW, OTHER_SEEDS), twin.partial_reset(MIDDLE_ROW, SEEDS)
            assert_same(*starts, MIDDLE_ROW)
        assert_same(env.step(random_actions(env, 9)), twin.step(random_actions(twin, 9)), MIDDLE_ROW)

    def test_state_brings_back_the_moment(self, env: HostVectorEnv, twin: HostVectorEnv) -> None:
        env.reset(SEEDS)
        play(env, 5)
        state = env.get_state()
        if state is None:
            with raises_naming(NotImplementedError, "set_state", "get_state"):
                env.set_state(np.zeros((NUM_ENVS, 1), np.uint8))
            return
        assert state.dtype == np.uint8
        assert state.shape[0] == NUM_ENVS
        first = play(env, self.num_steps, first=5)
        env.set_state(state)
        assert_same(env.get_state(), state)
        assert_same(play(env, self.num_steps, first=5), first)
        twin.set_state(state)
        assert_same(play(twin, self.num_steps, first=5), first)
