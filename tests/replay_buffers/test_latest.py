from __future__ import annotations

import jax
import numpy as np

from evorl.replay_buffers.latest import CombinedReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.conformance.replay_buffer import ReplayBufferContract
from tests.support.whole_programs import Whole


class TestContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return CombinedReplayBuffer(capacity=capacity, num_envs=num_envs)


def test_the_newest_of_each_environment_come_first() -> None:
    buffer = Whole(CombinedReplayBuffer(capacity=10, num_envs=2))
    state = buffer.init(np.int32(0))
    for step in range(8):  # wraps around the ring
        state = buffer.add(state, np.array([[2 * step, 2 * step + 1]], np.int32))
        for num in (1, 2, 50):
            batch = np.asarray(buffer.sample(state, jax.random.key(step), num))
            np.testing.assert_array_equal(batch[:2], [2 * step, 2 * step + 1][:num])
    assert set(batch[2:].tolist()) == set(range(6, 16))
