"""Segments: slow clients delay no one, segments contain one simulator's steps, and old ones are discarded."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.serving.segments import Segments, StepRef
from tests.support.errors import raises_naming


def place(*values: float) -> StepRef:
    """Return a step with these ``values``, in the second of three rows of a call."""
    floats = np.full((3, len(values)), -1.0, np.float32)
    floats[1] = values
    return StepRef([floats, np.array([[0], [int(values[0])], [0]], np.int32)], 1)


def add(segments: Segments, session: int, *numbers: float, ends: bool = False) -> None:
    for number in numbers:
        segments.add(session, place(session, number), ends and number == numbers[-1])


def test_rows_are_streams_in_the_order_in_which_they_were_filled() -> None:
    segments = Segments(length=3, num_rows=2, max_lag=None)
    add(segments, 1, 10, 11)
    add(segments, 2, 20, 21, 22)
    assert not segments.is_ready
    assert segments.num_full == 1
    add(segments, 1, 12, 13)
    assert segments.is_ready
    (floats, integers), cuts, lag = segments.take()
    assert floats.shape == (3, 2, 2)
    assert integers.dtype == np.int32
    np.testing.assert_array_equal(floats[..., 0], [[2, 1]] * 3)
    np.testing.assert_array_equal(floats[..., 1], [[20, 10], [21, 11], [22, 12]])
    np.testing.assert_array_equal(integers[..., 0], [[2, 1]] * 3)
    assert not cuts.any()
    assert lag == 0.0
    assert segments.num_full == 0


def test_there_is_no_batch_of_too_few_rows() -> None:
    segments = Segments(length=1, num_rows=2, max_lag=None)
    add(segments, 1, 10)
    with raises_naming(ValueError, "2 full segments", "only 1"):
        segments.take()


def test_who_comes_goes_on_in_the_row_of_who_left_behind_a_cut() -> None:
    segments = Segments(length=4, num_rows=1, max_lag=None)
    add(segments, 1, 10, 11)
    segments.cut(1)
    add(segments, 2, 20)
    segments.cut(2)
    add(segments, 3, 30, 31)
    (floats, _), cuts, _ = segments.take()
    np.testing.assert_array_equal(floats[:, 0, 1], [10, 11, 20, 30])
    np.testing.assert_array_equal(cuts[:, 0], [False, True, True, False])


def test_an_episode_that_has_ended_needs_no_cut() -> None:
    segments = Segments(length=3, num_rows=1, max_lag=None)
    add(segments, 1, 10, 11, ends=True)
    segments.cut(1)
    add(segments, 2, 20)
    _, cuts, _ = segments.take()
    assert not cuts.any()


def test_a_cut_of_nothing_is_none() -> None:
    segments = Segments(length=2, num_rows=1, max_lag=None)
    segments.cut(5)
    add(segments, 1, 10, 11)
    segments.cut(1)  # its segment is full, and the following steps are not used
    _, cuts, _ = segments.take()
    assert not cuts.any()


def test_a_broken_episode_goes_on_in_a_new_row_of_its_own() -> None:
    """After a reset within an episode, the session's next steps follow a cut in another segment."""
    segments = Segments(length=3, num_rows=1, max_lag=None)
    add(segments, 1, 10)
    segments.cut(1)
    add(segments, 1, 11, 12)
    (floats, _), cuts, _ = segments.take()
    np.testing.assert_array_equal(floats[:, 0, 1], [10, 11, 12])
    np.testing.assert_array_equal(cuts[:, 0], [True, False, False])


@pytest.mark.parametrize("only_at_starts", [False, True])
def test_memory_is_known_where_rows_and_episodes_start(only_at_starts: bool) -> None:
    """Segments of recurrent agents start with a stored state and contain no client that joined mid-episode."""
    segments = Segments(length=2, num_rows=1, max_lag=None, joins_only_at_starts=only_at_starts)
    add(segments, 2, 20, 21)  # a full segment; the episode continues
    segments.take()
    add(segments, 1, 10)
    segments.cut(1)
    add(segments, 2, 22)
    assert segments.num_full == (0 if only_at_starts else 1)
    add(segments, 2, 23, ends=True)
    if only_at_starts:
        np.testing.assert_array_equal(segments.take()[0][0][:, 0, 1], [22, 23])
        add(segments, 2, 24)  # of another episode
        np.testing.assert_array_equal(segments.take()[0][0][:, 0, 1], [10, 24])


def test_rows_that_are_too_old_are_left_out_and_counted() -> None:
    segments = Segments(length=2, num_rows=1, max_lag=1)
    segments.new_policy()
    add(segments, 1, 10)
    segments.new_policy()
    add(segments, 1, 11)  # full, and started one policy ago
    add(segments, 2, 20)
    segments.new_policy()  # now two
    assert not segments.is_ready
    assert segments.dropped == 1
    add(segments, 2, 21)
    (floats, _), _, lag = segments.take()
    np.testing.assert_array_equal(floats[:, 0, 1], [20, 21])
    assert lag == 1.0
    assert segments.version == 3


def test_rows_that_are_not_full_grow_old_too() -> None:
    segments = Segments(length=3, num_rows=1, max_lag=0)
    add(segments, 1, 10)
    add(segments, 2, 20)
    segments.cut(2)
    segments.new_policy()
    assert segments.dropped == 2
    add(segments, 1, 11, 12, 13)
    (floats, _), cuts, lag = segments.take()
    np.testing.assert_array_equal(floats[:, 0, 1], [11, 12, 13])
    assert not cuts.any()
    assert lag == 0.0


def test_without_lag_an_action_of_an_older_policy_is_none_to_learn_from() -> None:
    """With ``max_lag=0``, steps whose policy was replaced before their outcome are not used for training."""
    segments = Segments(length=2, num_rows=1, max_lag=0)
    segments.answered(1)
    segments.new_policy()
    add(segments, 1, 10)  # chosen by the old policy
    segments.answered(1)
    add(segments, 1, 11, 12)
    (floats, _), _, _ = segments.take()
    np.testing.assert_array_equal(floats[:, 0, 1], [11, 12])


def test_without_a_bound_nothing_is_too_old() -> None:
    segments = Segments(length=2, num_rows=1, max_lag=None)
    add(segments, 1, 10)
    for _ in range(9):
        segments.new_policy()
    add(segments, 1, 11)
    assert segments.take()[2] == 9.0
    assert segments.dropped == 0


def test_batches_are_numbers_of_their_own() -> None:
    """Batches are copies, so that arrays of a call may be reused."""
    segments = Segments(length=1, num_rows=1, max_lag=None)
    step = place(1, 10)
    segments.add(1, step, False)
    (floats, _), _, _ = segments.take()
    step.arrays[0][:] = 0.0
    assert floats[0, 0, 1] == 10.0


@pytest.mark.parametrize("max_lag", [None, 0, 1, 4, 5])
def test_lag_is_counted_from_the_policy_that_acted(max_lag: int | None) -> None:
    """A slow simulator's step has the age of the policy that chose its action."""
    segments = Segments(length=1, num_rows=1, max_lag=max_lag)
    segments.answered(0)
    for _ in range(5):
        segments.new_policy()
    add(segments, 0, 10)
    is_young = max_lag is None or max_lag >= 5
    assert segments.is_ready == is_young
    assert segments.dropped == (max_lag in (1, 4))
    segments.answered(0)
    add(segments, 0, 11)  # chosen by the current policy
    assert segments.take()[2] == (5.0 if is_young else 0.0)


@pytest.mark.parametrize("num_updates", [0, 1, 2])
def test_a_segment_is_as_old_as_the_oldest_policy_of_its_clients(num_updates: int) -> None:
    segments = Segments(length=2, num_rows=1, max_lag=1)
    segments.answered(2)  # a slow simulator
    for _ in range(num_updates):
        segments.new_policy()
    segments.answered(1)
    add(segments, 1, 10)
    segments.cut(1)
    add(segments, 2, 20)
    segments.answered(2)
    add(segments, 2, 21)
    (floats, _), cuts, lag = segments.take()
    # A step that is too old costs the other simulator's segment nothing.
    assert floats[:, 0, 1].tolist() == ([10, 21] if num_updates == 2 else [10, 20])
    assert lag == num_updates % 2
    assert segments.dropped == (num_updates == 2)
    assert cuts[:, 0].tolist() == [True, False]
