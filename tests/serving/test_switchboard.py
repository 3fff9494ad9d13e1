"""The switchboard: order and batching of responses, and clients that leave."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evorl.envs.space import Box, Discrete
from evorl.serving.batched_inference import MAX_BATCH, ActionBatch, ActionRequest
from evorl.serving.segments import Segments
from evorl.serving.session import Refused
from evorl.serving.switchboard import Switchboard
from tests.support.errors import raises_naming


class FakeAnswering:
    """Answers with the session number, and records which requests share a batch."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, int]]] = []
        self.policies: list[Any] = []
        self.failure: Exception | None = None
        self.answered_by: dict[tuple[int, int], Any] = {}  # the policy that answered each request

    def publish(self, acting: Any) -> None:
        self.policies.append(acting)

    def ask(self, questions: list[ActionRequest]) -> ActionBatch:
        if self.failure is not None:
            raise self.failure
        self.calls.append([(question.session, question.step) for question in questions])
        self.answered_by.update(dict.fromkeys(self.calls[-1], self.policies[-1]))
        steps = [np.array([[question.session, question.step] for question in questions], np.float32)]
        return ActionBatch(np.array([question.session for question in questions]), steps)


class SwitchboardSetup:
    """A switchboard with all its collaborators."""

    def __init__(self, max_lag: int | None = None, length: int = 2, num_rows: int = 1, max_clients: int = 100) -> None:
        self.inference = FakeAnswering()
        self.segments = Segments(length, num_rows, max_lag)
        inference: Any = self.inference
        self.switchboard = Switchboard(inference, self.segments, Box(0.0, 1.0, (1,)), Discrete(2), max_clients)
        self.publish("first")
        self.sent: list[tuple[int, Any]] = []
        self.steps: dict[int, int] = {}

    def publish(self, policy: Any) -> None:
        """Publish a policy as the learner does."""
        self.inference.publish(policy)
        self.switchboard.note_new_policy()

    def enter(self, exploit: bool = False) -> SimpleNamespace:
        number, slot = self.switchboard.enter(exploit)
        return SimpleNamespace(number=number, slot=slot, exploit=exploit)

    def ask(self, client: Any, over: bool = False, starts: bool = False) -> None:
        step = self.steps[client.number] = self.steps.get(client.number, -1) + 1
        answer = None if over else lambda action: self.sent.append((client.number, action))
        question = ActionRequest(
            client.number, client.slot, step, np.zeros(1), 0.0, starts or step == 0, over, False, client.exploit, answer
        )
        self.switchboard.ask(question)

    def batch(self) -> list[list[tuple[int, int]]]:
        """Return the next batch by rows: session numbers and step numbers."""
        batch = self.switchboard.wait_for_batch(lambda: True)
        assert batch is not None
        return [[(int(n), int(step)) for n, step in row] for row in np.swapaxes(batch[0][0], 0, 1)]


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_a_loop
async def test_who_asks_in_one_turn_is_answered_together() -> None:
    place = SwitchboardSetup()
    clients = [place.enter() for _ in range(3)]
    for client in clients:
        place.ask(client)
    assert place.switchboard.num_waiting == 3
    await turns()
    assert place.inference.calls == [[(0, 0), (1, 0), (2, 0)]]
    assert place.sent == [(0, 0), (1, 1), (2, 2)]
    assert place.switchboard.num_answers == 3


@in_a_loop
async def test_questions_of_one_session_are_answered_in_turn() -> None:
    """Requests of one session are answered in turn, even if they arrive in one read."""
    place = SwitchboardSetup(length=1, num_rows=9)
    a, b = place.enter(), place.enter()
    place.ask(a)
    place.ask(a, over=True)
    place.ask(b)
    place.ask(a)
    await turns()
    assert place.inference.calls == [[(0, 0), (1, 0)], [(0, 1)], [(0, 2)]]
    assert place.sent == [(0, 0), (1, 1), (0, 0)]


@in_a_loop
async def test_a_call_has_its_limit() -> None:
    place = SwitchboardSetup()
    for _ in range(MAX_BATCH + 5):
        place.ask(place.enter())
    await turns()
    assert [len(call) for call in place.inference.calls] == [MAX_BATCH, 5]


@in_a_loop
async def test_who_exploits_is_answered_apart_and_never_learned_from() -> None:
    place = SwitchboardSetup(length=1, num_rows=9)
    a, greedy = place.enter(), place.enter(exploit=True)
    assert place.switchboard.num_greedy == 1
    for _ in range(3):
        place.ask(a)
        place.ask(greedy)
        await turns()
    assert place.inference.calls[:2] == [[(1, 0)], [(0, 0)]]
    assert place.segments.num_full == 2  # of the learning session
    place.switchboard.cut(greedy.number)
    place.switchboard.leave(greedy.number, greedy.slot)
    assert place.switchboard.num_greedy == 0


@in_a_loop
async def test_who_leaves_with_a_question_pending_is_cut_behind_its_step() -> None:
    place = SwitchboardSetup(length=3, max_clients=1)
    first = place.enter()
    place.ask(first)
    await turns()
    place.ask(first)  # contains the outcome of the first action
    place.switchboard.leave(first.number, first.slot)
    with raises_naming(Refused, "max_clients=1"):
        place.enter()
    await turns()
    assert place.sent == [(0, 0)]  # it has left, so it receives nothing more
    second = place.enter()
    assert second.slot == first.slot
    for _ in range(3):
        place.ask(second)
        await turns()
    batch = place.switchboard.wait_for_batch(lambda: True)
    assert batch is not None
    np.testing.assert_array_equal(batch[0][0][:, 0], [[0, 1], [1, 1], [1, 2]])
    np.testing.assert_array_equal(batch[1][:, 0], [True, False, False])


@in_a_loop
async def test_who_leaves_without_a_question_makes_room_at_once() -> None:
    place = SwitchboardSetup(max_clients=2)
    clients = [place.enter(), place.enter()]
    with pytest.raises(Refused):
        place.enter()
    place.switchboard.leave(clients[0].number, clients[0].slot)
    assert place.switchboard.num_clients == 1
    assert place.enter().slot == clients[0].slot
    assert place.switchboard.num_clients == 2


@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_nobody_runs_ahead_of_the_learner(max_lag: int | None) -> None:
    async def run() -> None:
        place = SwitchboardSetup(max_lag=max_lag)
        client, greedy = place.enter(), place.enter(exploit=True)
        for _ in range(3):
            place.ask(client)
            await turns()
        assert len(place.sent) == 3  # two steps are a batch
        place.ask(client)
        place.ask(greedy)
        await turns()
        assert place.sent[3:] == [(1, 1)]  # the learner must take the batch first; greedy clients do not wait
        assert place.batch() == [[(0, 1), (0, 2)]]
        await turns()
        assert len(place.sent) == (4 if max_lag == 0 else 5)
        place.publish("second")
        await turns()
        assert len(place.sent) == 5
        assert place.segments.version == 2

    asyncio.run(run())


def test_without_lag_a_batch_is_of_one_policy() -> None:
    async def run() -> None:
        place = SwitchboardSetup(max_lag=0, num_rows=2)
        clients = [place.enter(), place.enter(), place.enter()]  # one more than the number of rows
        lags = []
        for version in range(1, 5):
            while not place.segments.is_ready:
                for client in clients:
                    if not any(question.session == client.number for question in place.switchboard._pending):
                        place.ask(client)
                await turns()
            batch = place.switchboard.wait_for_batch(lambda: True)
            assert batch is not None
            lags.append(batch[2])
            # Each action, the answer to the previous request, came from the policy that trains on it.
            actors = {place.inference.answered_by[int(n), int(step) - 1] for n, step in batch[0][0].reshape(-1, 2)}
            assert actors == {place.inference.policies[-1]}
            place.publish(version)
            await turns()
        assert lags == [0.0] * 4

    asyncio.run(run())


@in_a_loop
async def test_an_evaluation_makes_nothing_older() -> None:
    """Publishing the same policy again does not make its steps outdated."""
    place = SwitchboardSetup(max_lag=0)
    client = place.enter()
    for _ in range(2):
        place.ask(client)
        await turns()
    place.publish("first")
    place.ask(client)
    await turns()
    assert place.batch() == [[(0, 1), (0, 2)]]
    assert place.segments.dropped == 0


@in_a_loop
async def test_a_failure_is_raised_where_it_is_waited_for() -> None:
    place = SwitchboardSetup()
    place.inference.failure = FloatingPointError("the policy is gone")
    place.ask(place.enter())
    await turns()
    assert isinstance(place.switchboard.failure, FloatingPointError)
    for wait in (place.switchboard.wait_for_batch, lambda stop: place.switchboard.wait_for_episodes(1, 1.0, stop)):
        with raises_naming(RuntimeError, "the policy is gone"):
            wait(lambda: False)


def test_a_learner_that_waits_is_woken_or_stopped() -> None:
    place = SwitchboardSetup(length=1)
    stop = threading.Event()
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(place.switchboard.wait_for_batch(stop.is_set)))
    waiting.start()

    async def play() -> None:
        client = place.enter()
        for _ in range(2):
            place.ask(client)
            await turns()

    asyncio.run(play())
    waiting.join(5.0)
    assert got[0] is not None
    stop.set()
    assert place.switchboard.wait_for_batch(stop.is_set) is None


def test_greedy_episodes_are_counted_and_waited_for() -> None:
    place = SwitchboardSetup()
    for number in range(3):
        place.switchboard.episode(0, True, float(number), number)
        place.switchboard.episode(1, False, 10.0, 5)
    assert place.switchboard.wait_for_episodes(2, 9.0, lambda: False) == [(1.0, 1), (2.0, 2)]
    assert place.switchboard.greedy_returns == []
    assert place.switchboard.mean_return == 10.0
    started = time.monotonic()
    assert place.switchboard.wait_for_episodes(2, 0.05, lambda: False) == []
    assert time.monotonic() - started < 2.0


@in_a_loop
async def test_episodes_that_began_before_the_evaluation_do_not_count() -> None:
    place = SwitchboardSetup()
    early, late = place.enter(exploit=True), place.enter(exploit=True)
    place.ask(early, starts=True)
    await turns()
    place.switchboard.begin_evaluation()
    place.switchboard.episode(early.number, True, 1.0, 1)
    for client in (early, late):
        place.ask(client, starts=True)
        await turns()
        place.switchboard.episode(client.number, True, 2.0, 1)
    assert place.switchboard.wait_for_episodes(2, 9.0, lambda: False) == [(2.0, 1), (2.0, 1)]


@in_a_loop
async def test_numbers_for_those_who_watch() -> None:
    place = SwitchboardSetup(length=1, num_rows=2)
    assert np.isnan(place.switchboard.numbers()["mean_return"])
    client = place.enter()
    place.enter(exploit=True)
    for _ in range(2):
        place.ask(client)
        await turns()
    numbers = place.switchboard.numbers()
    assert np.isnan(numbers.pop("mean_return"))
    assert numbers == {
        "clients": 2,
        "clients_exploiting": 1,
        "requests_waiting": 0,
        "responses_total": 2,
        "segments_waiting": 1,
        "segments_dropped_total": 0,
        "policy_version": 1,
    }
