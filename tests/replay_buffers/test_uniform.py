from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.replay_buffers.ring import ReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.conformance.replay_buffer import ReplayBufferContract
from tests.support.whole_programs import Whole

BUFFER = UniformReplayBuffer(capacity=22, num_envs=4)  # rounded up to 6 rows
SPEC = {"id": jax.ShapeDtypeStruct((), jnp.int32), "obs": jax.ShapeDtypeStruct((2,), jnp.float32)}


class TestContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return UniformReplayBuffer(capacity=capacity, num_envs=num_envs)


def _filled(num_rows: int) -> ReplayState:
    ids = np.arange(num_rows * 4, dtype=np.int32).reshape(num_rows, 4)
    obs = np.stack([ids, -ids], axis=-1).astype(np.float32)
    return Whole(BUFFER).add(BUFFER.init(SPEC), {"id": ids, "obs": obs})


def test_capacity_is_rounded_up_to_whole_rows() -> None:
    assert BUFFER.num_rows == 6
    assert BUFFER.num_bytes(SPEC) == 6 * 4 * (4 + 8)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(BUFFER.init(SPEC).data)) == BUFFER.num_bytes(SPEC)


@pytest.mark.parametrize("num_rows", [3, 6])
def test_sampling_is_uniform_over_what_is_stored(num_rows: int) -> None:
    draws, cells = 20_000, num_rows * 4
    sample = Whole(BUFFER).sample(_filled(num_rows), jax.random.key(1), draws)
    counts = np.bincount(sample["id"], minlength=cells)
    assert len(counts) == cells
    chi_square = ((counts - draws / cells) ** 2 / (draws / cells)).sum()
    degrees = cells - 1
    # Mean and standard deviation of the statistic are known; with a fixed key, four deviations are significant.
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
