"""Step counter, return and end of an episode."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest

from evorl.envs import AutoresetMode, EnvState
from evorl.envs.stack import wrap_env
from evorl.envs.wrappers import VECTOR_ENVS, EpisodeWrapper, OneEpisodeWrapper, VmapWrapper
from tests.support.errors import raises_naming
from tests.support.faulty_envs import Walk
from tests.support.probe_envs import TIME_LIMIT, ProbeEnv


def end_of_episode(env: EpisodeWrapper):
    state = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    while not state.done:
        state = step(state, jnp.asarray(0))
    return state


def test_the_clock_truncates() -> None:
    state = end_of_episode(EpisodeWrapper(ProbeEnv("termination"), TIME_LIMIT - 1))
    assert (bool(state.info.termination), bool(state.info.truncation)) == (False, True)
    assert state.info.steps == state.info.episode_length == TIME_LIMIT - 1
    assert state.info.episode_return == TIME_LIMIT - 1


@pytest.mark.parametrize("limit", [TIME_LIMIT, TIME_LIMIT + 1, None])
def test_both_at_once_is_termination(limit: int | None) -> None:
    state = end_of_episode(EpisodeWrapper(ProbeEnv("termination"), limit))
    assert (bool(state.info.termination), bool(state.info.truncation)) == (True, False)
    assert state.info.steps == TIME_LIMIT


class Flagged(Walk):
    """Reports the end of each step by ``done``, ``termination`` and ``truncation`` as constructed."""

    def __init__(self, done: bool, termination: bool, truncation: bool) -> None:
        self.flags = done, termination, truncation

    def step(self, env_state: EnvState, action: jax.Array) -> EnvState:
        state = super().step(env_state, action)
        done, termination, truncation = map(jnp.asarray, self.flags)
        info = state.info | {"termination": termination, "truncation": truncation}
        return state.replace(done=done, reward=jnp.float32(1), info=info)


@pytest.mark.parametrize("limit", [None, 60])
@pytest.mark.parametrize("action_repeat", [1, 3])
@pytest.mark.parametrize("ends", list(itertools.product([False, True], repeat=3)))
def test_any_flag_of_a_users_environment_ends_the_episode(
    ends: tuple[bool, bool, bool], action_repeat: int, limit: int | None
) -> None:
    """``done`` without a flag is a termination; a time limit ignored it, so that the episode never ended."""
    env = wrap_env(Flagged(*ends), max_episode_steps=limit, action_repeat=action_repeat)
    state = env.step(env.reset(jax.random.key(0)), jnp.zeros(1, jnp.int32))
    done, termination, truncation = ends
    is_termination = termination or (done and not truncation)
    assert bool(state.done[0]) == any(ends)
    assert bool(state.info.termination[0]) == is_termination
    assert bool(state.info.truncation[0]) == (truncation and not is_termination)
    assert float(state.reward[0]) == (1 if any(ends) else action_repeat)


@pytest.mark.parametrize("chosen", [None, 3, 9])
@pytest.mark.parametrize("declared", [6, 7])
@pytest.mark.parametrize("repeat", [1, 2])
def test_a_limit_that_a_users_class_declares_is_enforced(chosen: int | None, declared: int, repeat: int) -> None:
    """Evaluations ended after the declared number of steps, but training episodes did not."""

    class Limited(Flagged):
        max_episode_steps = declared

    env = wrap_env(
        Limited(False, False, False), max_episode_steps=chosen, action_repeat=repeat, autoreset_mode="disabled"
    )
    state = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    for moment in range(10):
        state = step(state, jnp.full(1, moment % 2))  # to and fro
    num_steps = min(chosen or declared, declared)
    assert state.info.episode_return[0] == num_steps, "the last action is repeated fewer times"
    assert env.max_episode_steps == state.info.steps[0] == -(-num_steps // repeat)
    assert state.info.truncation[0]


def test_limits() -> None:
    assert EpisodeWrapper(ProbeEnv("time_limit"), 5).max_episode_steps == 5
    assert EpisodeWrapper(ProbeEnv("time_limit")).max_episode_steps is None
    with raises_naming(ValueError, "already", "EpisodeWrapper"):
        EpisodeWrapper(EpisodeWrapper(ProbeEnv("time_limit"), 5), 3)
    with raises_naming(ValueError, "max_episode_steps", "got 0"):
        EpisodeWrapper(ProbeEnv("time_limit"), 0)


@pytest.mark.parametrize("inside", [False, True])
def test_one_episode_each_in_a_vector_env(inside: bool) -> None:
    """A wrapper that freezes ended episodes changes nothing in a vector env that also does so."""
    env = EpisodeWrapper(ProbeEnv("termination"), 3)
    vector = VmapWrapper(OneEpisodeWrapper(env) if inside else env, 2)
    state = vector.reset(jax.random.key(0))
    rewards = []
    for _ in range(5):
        state = vector.step(state, jnp.zeros(2, jnp.int32))
        rewards.append(float(state.reward[0]))
    assert rewards == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert state.info.steps.tolist() == [3, 3]
    assert (state.obs == state.info.next_obs).all()


def test_a_frozen_episode_is_followed_by_no_other() -> None:
    for mode in set(AutoresetMode) - {AutoresetMode.DISABLED}:
        with raises_naming(TypeError, "OneEpisodeWrapper", "VmapWrapper"):
            VECTOR_ENVS[mode](OneEpisodeWrapper(EpisodeWrapper(ProbeEnv("termination"), 3)), 2)


def test_one_episode_freezes() -> None:
    env = OneEpisodeWrapper(EpisodeWrapper(ProbeEnv("discounting")))
    state = env.reset(jax.random.key(0))
    rewards, observations = [], []
    for _ in range(4):
        state = env.step(state, jnp.asarray(0))
        rewards.append(float(state.reward))
        observations.append(float(state.obs[0]))
    assert rewards == [0.0, 1.0, 0.0, 0.0]
    assert observations == [1.0, 2.0, 2.0, 2.0]
    assert state.done
    assert state.info.steps == 2
