"""Transitions over several steps equal loops over episodes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.replay_buffers.ring import ReplayState, take_n_step
from evorl.replay_buffers.uniform import UniformReplayBuffer
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeDict
from tests.support.whole_programs import Whole, whole

NUM_ENVS, ROWS, DISCOUNT = 3, 16, 0.9
BUFFER = UniformReplayBuffer(capacity=ROWS * NUM_ENVS, num_envs=NUM_ENVS)


def _history(length: int) -> SampleBatch:
    """Return random rewards and ends, with the step number as observation."""
    rng, shape = np.random.default_rng(0), (length, NUM_ENVS)
    step = np.broadcast_to(np.arange(length, dtype=np.float32)[:, None], shape)
    dones = rng.random(shape) < 0.2
    return SampleBatch(
        obs=step,
        actions=np.arange(length * NUM_ENVS).reshape(shape),
        rewards=rng.normal(size=shape).astype(np.float32),
        next_obs=step + 0.5,
        dones=dones,
        extras=PyTreeDict(termination=dones & (rng.random(shape) < 0.5)),
    )


def _stored(history: SampleBatch) -> ReplayState:
    state = Whole(BUFFER).init(jax.tree.map(lambda x: x[0, 0], history))
    for start in range(0, len(history), 4):
        state = Whole(BUFFER).add(state, history[start : start + 4])
    return state


def _expected(history: SampleBatch, start: int, env: int, num_steps: int) -> tuple[float, float, int, float]:
    reward = 0.0
    for k in range(num_steps):
        t = start + k
        reward += DISCOUNT**k * float(history.rewards[t, env])
        if bool(history.dones[t, env]) or t + 1 == len(history):
            break
    discount = 0.0 if bool(history.extras.termination[t, env]) else DISCOUNT ** (k + 1)
    return reward, float(history.next_obs[t, env]), k + 1, discount


@pytest.mark.parametrize("length", [12, 28])  # the second wraps around the ring
@pytest.mark.parametrize("num_steps", [1, 3, 5, ROWS])
def test_every_stored_step_starts_one(length: int, num_steps: int) -> None:
    history = _history(length)
    oldest = max(0, length - ROWS)
    starts, envs = (x.reshape(-1) for x in np.meshgrid(np.arange(oldest, length), np.arange(NUM_ENVS)))
    batch = whole(take_n_step)(_stored(history), starts % ROWS, envs, NUM_ENVS, num_steps, DISCOUNT)
    batch = jax.tree.map(np.asarray, batch)
    for i, (start, env) in enumerate(zip(starts, envs, strict=True)):
        reward, next_obs, num_rewards, discount = _expected(history, start, env, num_steps)
        assert batch.obs[i] == start
        assert batch.actions[i] == start * NUM_ENVS + env
        assert batch.next_obs[i] == next_obs
        assert batch.extras.num_rewards[i] == num_rewards
        np.testing.assert_allclose(batch.rewards[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.extras.discounts[i], discount, rtol=1e-5)


@pytest.mark.parametrize("terminated", [True, False])
def test_an_episode_gives_as_many_as_it_has_steps(terminated: bool) -> None:
    """Every step starts a transition; the last ones are shorter, and none continues into the next episode."""
    lengths, env = [5, 2, 1, 4], 1
    ends = np.cumsum(lengths) - 1
    history = _history(sum(lengths))
    dones = np.zeros_like(history.dones)
    dones[ends] = True
    tag = np.arange(dones.size).reshape(dones.shape)
    history = history.replace(dones=dones, extras=PyTreeDict(termination=dones & terminated, tag=tag))
    rows = np.arange(sum(lengths))
    batch = whole(take_n_step)(_stored(history), rows, np.full_like(rows, env), NUM_ENVS, 3, DISCOUNT)
    batch = jax.tree.map(np.asarray, batch)
    expected = [min(3, length - step) for length in lengths for step in range(length)]
    np.testing.assert_array_equal(batch.extras.num_rewards, expected)
    np.testing.assert_array_equal(batch.extras.tag, tag[:, env])
    first = 0
    for length, end in zip(lengths, ends, strict=True):
        own = slice(first, end + 1)
        reaches_the_end = np.arange(first, end + 1) + batch.extras.num_rewards[own] == end + 1
        assert reaches_the_end.sum() == min(3, length)
        np.testing.assert_array_equal(batch.next_obs[own][reaches_the_end], history.next_obs[end, env])
        bootstrapped = np.asarray(batch.extras.discounts[own] > 0)
        np.testing.assert_array_equal(bootstrapped, ~reaches_the_end | (not terminated))
        rewards = [
            sum(DISCOUNT**k * history.rewards[t + k, env] for k in range(expected[t])) for t in range(first, end + 1)
        ]
        np.testing.assert_allclose(batch.rewards[own], rewards, rtol=1e-5)
        first = end + 1


def test_an_episode_that_was_cut_ends_with_its_newest_step() -> None:
    """Only environments in the mask are truncated, also in a stack of rings: later steps belong to another episode."""
    history, mask = _history(18).replace(dones=np.zeros((18, NUM_ENVS), np.bool_)), np.array([True, False, True])
    history = history.replace(extras=PyTreeDict(termination=history.dones))
    ring = _stored(history[:17])  # the newest row has wrapped around
    pair = jax.tree.map(lambda x: np.stack([x, x]), ring).end_episodes(mask)
    np.testing.assert_array_equal(pair.data.dones[0], ring.end_episodes(mask).data.dones)
    state = Whole(BUFFER).add(jax.tree.map(lambda x: x[1], pair), history[17:])
    batch = take_n_step(state, np.full(3, 15), np.arange(3), NUM_ENVS, 3, DISCOUNT)
    np.testing.assert_array_equal(batch.extras.num_rewards, [2, 3, 2])
    np.testing.assert_array_equal(batch.next_obs, [16.5, 17.5, 16.5])
    np.testing.assert_allclose(batch.extras.discounts, DISCOUNT ** np.array([2, 3, 2]), rtol=1e-6)
