from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.replay_buffers.recency import RecencyReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.conformance.replay_buffer import ReplayBufferContract
from tests.support.whole_programs import Whole


class TestContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return RecencyReplayBuffer(capacity=capacity, num_envs=num_envs, exponent=0.5)


@pytest.mark.parametrize(
    ("exponent", "expected"), [(0.0, [0.25] * 4), (1.0, [0.1, 0.2, 0.3, 0.4]), (2.0, [1 / 30, 4 / 30, 9 / 30, 16 / 30])]
)
@pytest.mark.parametrize(("capacity", "num_added"), [(4, 4), (4, 7), (50, 4)])
def test_the_newer_the_more_often(exponent: float, expected: list[float], capacity: int, num_added: int) -> None:
    """Sampling frequencies increase with recency, in full, wrapped-around and partly filled rings."""
    buffer = RecencyReplayBuffer(capacity=capacity, exponent=exponent)
    state = Whole(buffer).init(np.int32(0))
    for step in range(num_added):
        state = Whole(buffer).add(state, np.array([[step]], np.int32))
    draws = 100_000
    batch = Whole(buffer).sample(state, jax.random.key(0), draws)
    counts = np.bincount(np.asarray(batch) - (num_added - 4), minlength=4)
    np.testing.assert_allclose(counts / draws, expected, atol=5 * np.sqrt(0.25 / draws))


def test_a_large_ring_is_drawn_from_to_its_newest_step() -> None:
    buffer = RecencyReplayBuffer(capacity=200_000, exponent=3.0)
    state = Whole(buffer).init(np.int32(0))
    state = Whole(buffer).add(state, np.arange(200_000, dtype=np.int32)[:, None])
    ages = np.asarray(Whole(buffer).sample(state, jax.random.key(1), 50_000))
    np.testing.assert_allclose(np.quantile(ages, [0.1, 0.5]) / 200_000, [0.1**0.25, 0.5**0.25], rtol=0.01)
    assert 199_900 < ages.max() <= 199_999
