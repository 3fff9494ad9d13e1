"""An environment with an adjustable processor time per step."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.speed.busy_env import make_busy_env


def seeds(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_a_step_of_each_row_uses_as_much_processor_time_as_asked():
    env = make_busy_env(2, milliseconds=5.0)
    env.reset(seeds(0, 1))
    start = time.thread_time()
    env.step(np.zeros(2, np.int32))
    assert 0.01 <= time.thread_time() - start < 0.02


def test_a_step_may_wait_instead():
    env = make_busy_env(2, milliseconds=5.0, waits=True)
    env.reset(seeds(0, 1))
    start, cpu_start = time.monotonic(), time.thread_time()
    env.step(np.zeros(2, np.int32))
    assert time.monotonic() - start >= 0.01
    assert time.thread_time() - cpu_start < 0.005


def test_the_sign_is_paid_and_seeds_tell_episodes():
    env = make_busy_env(2, milliseconds=0.0, max_episode_steps=2)
    obs = env.reset(seeds(3, 4))
    np.testing.assert_array_equal(obs[0], make_busy_env(1).reset(seeds(3))[0])
    assert (obs[0] != obs[1]).any()
    _, reward, termination, truncation, _ = env.step(obs[:, 0] > 0.0)
    np.testing.assert_array_equal(reward, [1.0, 1.0])
    assert not termination.any()
    assert not truncation.any()
    again = env.partial_reset(np.array([True, False]), seeds(3, 9))
    np.testing.assert_array_equal(again[0], obs[0])
    _, reward, _, truncation, _ = env.step(again[:, 0] <= 0.0)
    np.testing.assert_array_equal(reward, [0.0, 0.0])
    np.testing.assert_array_equal(truncation, [False, True])
