"""Transitions over one and several steps equal manual tables and a loop over every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evorl.interop.transitions import as_columns, as_sample_batch, check_done_means, n_step_transitions
from evorl.types import PyTreeDict
from tests.support.errors import raises_naming


def _steps(num: int, ends: dict[int, str] | None = None, extras: Any = lambda t: {"seen": 10 * t}) -> list:
    """Return steps with observation t and reward t + 1; ``ends`` marks terminated and truncated steps."""
    ends = ends or {}
    return [
        (np.array([t]), np.int64(t % 2), t + 1.0, np.array([t + 1]), ends.get(t) == "T", ends.get(t) == "t", extras(t))
        for t in range(num)
    ]


def _table(transitions: PyTreeDict) -> list[tuple]:
    """Return rows of start, reward, successor and done flag, as in the tables."""
    columns = (transitions.obs[:, 0], transitions.rewards, transitions.next_obs[:, 0], transitions.dones)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (4, [(0, [1, 2, 3], 3, False), (1, [2, 3, 4], 4, True), (2, [3, 4, 0], 4, True), (3, [4, 0, 0], 4, True)]),
        (2, [(0, [1, 2, 0], 2, True), (1, [2, 0, 0], 2, True)]),
        (3, [(0, [1, 2, 3], 3, True), (1, [2, 3, 0], 3, True), (2, [3, 0, 0], 3, True)]),
    ],
)
def test_three_steps_of_one_episode(length: int, expected: list[tuple]) -> None:
    columns = as_columns(_steps(length, {length - 1: "T"}), "either")
    transitions, left = n_step_transitions(columns, 3)
    assert _table(transitions) == expected
    assert left == 0
    np.testing.assert_array_equal(transitions.num_rewards, [np.count_nonzero(row[1]) for row in expected])
    np.testing.assert_array_equal(transitions.seen, 10 * transitions.obs[:, 0])  # also for truncated ones


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_many_steps_against_a_loop(num_steps: int) -> None:
    ends = {3: "T", 4: "t", 9: "t", 10: "T", 17: "T"}
    steps = _steps(21, ends)
    transitions, left = n_step_transitions(as_columns(steps, "terminated"), num_steps)
    assert len(transitions.obs) + left == 21
    assert left == min(num_steps - 1, 21 - 18)
    for i in range(len(transitions.obs)):
        window = []
        for t in range(i, i + num_steps):
            window.append(t)
            if t in ends:
                break
        last = window[-1]
        assert transitions.rewards[i].tolist() == [t + 1.0 for t in window] + [0.0] * (num_steps - len(window))
        assert transitions.num_rewards[i] == len(window)
        assert (transitions.obs[i, 0], transitions.next_obs[i, 0], transitions.seen[i]) == (i, last + 1, 10 * i)
        assert transitions.termination[i] == transitions.dones[i] == (ends.get(last) == "T")
        assert transitions.truncation[i] == (ends.get(last) == "t")


def test_an_extra_is_not_replaced_by_the_number_of_rewards() -> None:
    with raises_naming(ValueError, "num_rewards", "rename"):
        n_step_transitions(as_columns(_steps(3, extras=lambda t: {"num_rewards": 7.0}), "either"), 2)


def test_types_are_those_that_learners_compute_in() -> None:
    extras = {"a": 1.5, "b": {"c": np.float64([1, 2])}, "d": True, "e": np.uint8(7)}
    columns = as_columns(_steps(3, extras=lambda t: extras), "either")
    assert (columns.obs.dtype, columns.actions.dtype, columns.rewards.dtype) == (np.int32, np.int32, np.float32)
    assert (columns.a.dtype, columns.b.c.dtype, columns.d.dtype, columns.e.dtype) == (
        np.float32,
        np.float32,
        np.bool_,
        np.uint8,
    )
    assert columns.b.c.shape == (3, 2)


def test_an_end_by_task_and_time_is_one_by_the_task() -> None:
    step = (*_steps(1)[0][:4], True, True, {})
    columns = as_columns([step], "terminated")
    assert (columns.dones.item(), columns.termination.item(), columns.truncation.item()) == (True, True, False)


def test_a_truncated_step_is_done_or_not_as_asked() -> None:
    steps = _steps(2, {1: "t"})
    for meaning, dones in {"either": [False, True], "terminated": [False, False]}.items():
        columns = as_columns(steps, meaning)
        assert columns.dones.tolist() == dones
        assert columns.truncation.tolist() == [False, True]
    with raises_naming(ValueError, "'terminate'", "'terminated'"):
        check_done_means("terminate")


def test_steps_that_do_not_fit_together_are_refused_in_words() -> None:
    wrong = {
        ("['a']", "then ['b']"): lambda t: {"a" if t == 0 else "b": 0.0},
        ("[]", "then ['a']"): lambda t: {"a": 0.0} if t else {},
        ("extras named obs, rewards",): lambda t: {"obs": 0.0, "rewards": 1.0},
        ("shape", "got [(1,), (2,)]"): lambda t: {"a": np.zeros(1 + t % 2)},
        ("name", "numbers", "got <U2"): lambda t: {"name": "ab"},
        ("count", "int32"): lambda t: {"count": np.int64(2**40)},
    }
    for parts, extras in wrong.items():
        with raises_naming(ValueError, *parts):
            as_columns(_steps(4, extras=extras), "either")


def test_transitions_are_a_sample_batch_with_extras() -> None:
    batch = as_sample_batch(as_columns(_steps(3, {2: "T"}), "either"))
    assert batch.obs.shape == (3, 1)
    assert sorted(batch.extras) == ["seen", "termination", "truncation"]
    np.testing.assert_array_equal(batch.dones, batch.extras.termination)


def test_an_entry_named_extras_is_an_extra() -> None:
    columns = as_columns(_steps(3, extras=lambda t: {"extras": {"seen": 10 * t}, "seen": t}), "either")
    batch = as_sample_batch(columns)
    assert sorted(batch.extras) == ["extras", "seen", "termination", "truncation"]
    assert (batch.extras.extras.seen.tolist(), batch.extras.seen.tolist()) == ([0, 10, 20], [0, 1, 2])
