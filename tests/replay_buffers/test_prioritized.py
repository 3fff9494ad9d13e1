"""Prioritized replay: sampling probabilities, weights, and updates of priorities."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from evorl.ops.sum_tree import get_weights
from evorl.replay_buffers.prioritized import PrioritizedReplayBuffer, PrioritizedReplayState
from evorl.replay_buffers.uniform import UniformReplayBuffer
from tests.conformance.replay_buffer import ReplayBufferContract
from tests.support.whole_programs import Whole, whole

BUFFER = PrioritizedReplayBuffer(capacity=24, num_envs=4, exponent=0.5)  # 6 rows
WHOLE = Whole(BUFFER)
ZEROS = {"id": np.int32(0)}


class TestContract(ReplayBufferContract):
    @staticmethod
    def make(capacity: int, num_envs: int) -> UniformReplayBuffer:
        return PrioritizedReplayBuffer(capacity=capacity, num_envs=num_envs, exponent=0.5)


def _filled(num_rows: int) -> PrioritizedReplayState:
    ids = np.arange(num_rows * 4, dtype=np.int32).reshape(num_rows, 4)
    return WHOLE.add(WHOLE.init(ZEROS), {"id": ids})


def _with_errors(state: PrioritizedReplayState, errors: np.ndarray) -> PrioritizedReplayState:
    index = np.arange(errors.shape[0])
    return WHOLE.set_priorities(state, index // 4, index % 4, errors)


def test_draws_are_in_proportion_to_raised_priorities() -> None:
    errors = np.array([0.0, 1.0, 4.0, 16.0, 1.0, 1.0, 1.0, 9.0], np.float32)
    state = _with_errors(_filled(2), errors)
    draws = 40_000
    rows, envs = WHOLE.draw_indices(state, jax.random.key(0), draws)
    counts = np.bincount(np.asarray(rows) * 4 + np.asarray(envs), minlength=8)
    shares = np.asarray((np.abs(errors) + 1e-6) ** 0.5)
    expected = draws * shares / shares.sum()
    assert counts[0] < 30  # an error of zero is sampled rarely
    chi_square = (np.square(counts - expected) / expected)[1:].sum()
    assert chi_square < 22.5  # 6 degrees of freedom, p = 0.001


def test_importance_weights_undo_the_preference() -> None:
    state = _with_errors(_filled(2), np.array([0.0, 1.0, 4.0, 16.0, 1.0, 1.0, 1.0, 9.0], np.float32))
    rows, envs = WHOLE.draw_indices(state, jax.random.key(0), 40_000)
    weights = np.asarray(WHOLE.importance_weights(state, rows, envs, 1.0))
    drawn = np.asarray(rows) * 4 + np.asarray(envs)
    for value in range(1, 8):  # each value has the weight of probability 1/8
        np.testing.assert_allclose(weights[drawn == value].sum() / 40_000, 1 / 8, rtol=0.1)
    np.testing.assert_array_equal(WHOLE.importance_weights(state, rows, envs, 0.0), 1.0)


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_importance_weights_follow_their_formula(exponent: float) -> None:
    """Weights are ``(1 / (N P(i))) ** exponent`` (section 3.4) for errors of any magnitude, also of 0."""
    errors = np.array([0.0, 1e-9, -1e-3, 1.0, -1.0, 4.0, 1e6, -1e6], np.float32)
    priorities = (np.abs(errors.astype(np.float64)) + 1e-6) ** 0.5
    index = np.arange(8)
    found = WHOLE.importance_weights(_with_errors(_filled(2), errors), index // 4, index % 4, exponent)
    np.testing.assert_allclose(found, (1.0 / (8 * priorities / priorities.sum())) ** exponent, rtol=1e-5)


def test_new_transitions_have_the_greatest_priority_there_was() -> None:
    state = _with_errors(_filled(1), np.array([0.25, 9.0, 1.0, 0.0], np.float32))
    state = WHOLE.add(state, {"id": np.zeros((2, 4), np.int32)})
    np.testing.assert_allclose(whole(get_weights)(state.priorities, np.arange(4, 12)), 3.0)
    later = WHOLE.set_priorities(state, np.array([0]), np.array([1]), np.array([0.01], np.float32))
    later = WHOLE.add(later, {"id": np.zeros((1, 4), np.int32)})
    np.testing.assert_allclose(whole(get_weights)(later.priorities, np.arange(12, 16)), 3.0)


def test_overwritten_transitions_lose_their_priority() -> None:
    state = _with_errors(_filled(6), np.full(24, 25.0, np.float32))
    state = WHOLE.set_priorities(state, np.array([0]), np.array([2]), np.array([0.0], np.float32))
    state = WHOLE.add(state, {"id": np.zeros((1, 4), np.int32)})
    np.testing.assert_allclose(whole(get_weights)(state.priorities, np.arange(4)), 5.0, rtol=1e-5)


def test_masked_rows_and_errors_change_nothing() -> None:
    state = _filled(2)
    same = WHOLE.add(state, {"id": np.zeros((2, 4), np.int32)}, np.array([False, False]))
    jax.tree.map(np.testing.assert_array_equal, same, state)
    same = WHOLE.set_priorities(
        state, np.array([0, 1]), np.array([0, 1]), np.array([7.0, 7.0], np.float32), np.array(False)
    )
    jax.tree.map(np.testing.assert_array_equal, same, state)


def test_its_exponent_is_data() -> None:
    assert jax.tree.leaves(BUFFER) == [0.5]
