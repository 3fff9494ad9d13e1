"""The batch delay is applied where it collects requests, retried occasionally, and never used for a single client."""

from __future__ import annotations

import pytest

from evorl.serving import batch_delay
from evorl.serving.batch_delay import TURNS_BETWEEN_TRIALS, BatchDelay


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(batch_delay.time, "sleep", made.append)
    return made


def turn(of: BatchDelay, num_asked: int, num_later: int, num_clients: int) -> None:
    """Simulate a batch with ``num_asked`` requests, and ``num_later`` after a delay, if there is one."""
    if of.has_paused(num_asked, num_clients):
        assert not of.has_paused(num_later, num_clients), "one pause a turn"


def test_who_is_alone_is_answered_at_once(pauses: list[float]) -> None:
    one = BatchDelay()
    for _ in range(10 * TURNS_BETWEEN_TRIALS):
        turn(one, 1, 1, num_clients=1)
    assert not pauses


def test_nobody_waits_for_those_who_are_there(pauses: list[float]) -> None:
    many = BatchDelay()
    for _ in range(10 * TURNS_BETWEEN_TRIALS):
        turn(many, 8, 8, num_clients=8)
    assert not pauses


def test_pauses_that_bring_questions_go_on(pauses: list[float]) -> None:
    many = BatchDelay()
    for _ in range(100):
        turn(many, 2, 7, num_clients=8)
    assert len(pauses) == 100


def test_pauses_that_bring_nothing_end_but_for_trials(pauses: list[float]) -> None:
    slow = BatchDelay()
    for _ in range(20):
        turn(slow, 1, 1, num_clients=64)
    before = len(pauses)
    assert before < 10
    for _ in range(4 * TURNS_BETWEEN_TRIALS):
        turn(slow, 1, 1, num_clients=64)
    assert len(pauses) == before + 4
    for _ in range(8 * TURNS_BETWEEN_TRIALS):  # requests now arrive together, as a trial shows
        turn(slow, 1, 12, num_clients=64)
    assert len(pauses) > before + 4 + 5 * TURNS_BETWEEN_TRIALS
