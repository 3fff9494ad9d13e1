"""Actors that die repeatedly."""

from __future__ import annotations

from typing import Any

import pytest

from evorl.actors import supervisor
from evorl.actors.inline_pool import InlinePool
from evorl.envs.host.host_vector_env import HostEnvError
from tests.support.errors import raises_naming


class Dying:
    """A pool whose actors always die."""

    def __init__(self) -> None:
        self.started = 0

    def start(self, number: int) -> None:
        self.started += 1

    def send(self, number: int, request: Any) -> None:
        pass

    def answers(self, timeout: float) -> list:
        return []

    def why_dead(self, number: int) -> str:
        return "ended by signal SIGSEGV"

    def stop(self, number: int) -> None:
        pass


def test_an_actor_that_dies_again_and_again_ends_the_run() -> None:
    messages: list[str] = []
    pool = Dying()
    # A stub with only the methods of a pool that the supervisor calls.
    actors = supervisor.Supervisor(pool, 1, 60.0, messages.append)  # pyright: ignore[reportArgumentType]
    actors.submit(0, ())
    with raises_naming(HostEnvError, "actor 0", "SIGSEGV", "6 times"):
        actors.take([0])
    assert len(messages) == supervisor.MAX_DEATHS == pool.started - 1


class Clock:
    """The module ``time`` of the supervisor."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Slow:
    """A worker that takes a second of ``clock`` per answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def answer(self, number: int) -> int:
        self._clock.seconds += 1.0
        return number

    def close(self) -> None:
        pass


def test_inline_actors_that_wait_for_their_turn_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, messages = Clock(), list[str]()
    monkeypatch.setattr(supervisor, "time", clock)
    actors = supervisor.Supervisor(InlinePool(Slow, lambda _: clock), 3, 0.9, messages.append)
    for _ in range(2):
        for number in range(3):
            actors.submit(number, (number,))
        assert [actors.take([number]) for number in range(3)] == [(0, 0), (1, 1), (2, 2)]
    assert messages == []
    actors.close()
