from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.replay_buffers.recency import RecencyReplayBuffer
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.conformance.replay_buffer import ReplayBufferContract


class TestContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return RecencyReplayBuffer(capacity=capacity, num_envs=num_envs, exponent=0.5)


@pytest.mark.parametrize(
    ("exponent", "expected"), [(0.0, [0.25] * 4), (1.0, [0.1, 0.2, 0.3, 0.4]), (2.0, [1 / 30, 4 / 30, 9 / 30, 16 / 30])]
)
@pytest.mark.parametrize(("capacity", "num_added"), [(4, 4), (4, 7), (50, 4)])
def test_the_newer_the_more_often(exponent: float, expected: list[float], capacity: int, num_added: int) -> None:
    """Of four that are stored, in a ring that is full, that has gone around, and that has room."""
    buffer = RecencyReplayBuffer(capacity=capacity, exponent=exponent)
    state = buffer.init(jnp.zeros((), jnp.int32))
    for step in range(num_added):
        state = buffer.add(state, jnp.array([[step]], jnp.int32))
    draws = 100_000
    batch = jax.jit(buffer.sample, static_argnums=2)(state, jax.random.key(0), draws)
    counts = np.bincount(np.asarray(batch) - (num_added - 4), minlength=4)
    np.testing.assert_allclose(counts / draws, expected, atol=5 * np.sqrt(0.25 / draws))


def test_a_large_ring_is_drawn_from_to_its_newest_step() -> None:
    buffer = RecencyReplayBuffer(capacity=200_000, exponent=3.0)
    state = buffer.init(jnp.zeros((), jnp.int32))
    state = buffer.add(state, jnp.arange(200_000, dtype=jnp.int32)[:, None])
    ages = np.asarray(jax.jit(buffer.sample, static_argnums=2)(state, jax.random.key(1), 50_000))
    np.testing.assert_allclose(np.quantile(ages, [0.1, 0.5]) / 200_000, [0.1**0.25, 0.5**0.25], rtol=0.01)
    assert 199_900 < ages.max() <= 199_999
