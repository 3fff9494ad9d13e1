"""Requests to actors, with fault tolerance: a dead actor is replaced, and its request is sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from evorl.actors.pool import ActorPool
from evorl.envs.host.host_vector_env import HostEnvError

_POLL_SECONDS = 0.5
MAX_DEATHS = 5  # maximum number of consecutive deaths of an actor without a result


class Supervisor:
    """Sends requests to actors, at most one at a time to each, and replaces actors that die or hang.

    Args:
        pool: pool in which the actors run.
        count: number of actors.
        timeout: maximum seconds per request, except an actor's first; an actor that takes longer is replaced, except
            in an ``InlinePool``.
        message: callback that receives a message when an actor is replaced.
    """

    def __init__(self, pool: ActorPool, count: int, timeout: float, message: Callable[[str], None]) -> None:
        self._pool, self._timeout, self.message = pool, timeout, message
        self._requests: dict[int, tuple[tuple[Any, ...], float]] = {}
        self._done: dict[int, Any] = {}
        self._deaths = dict.fromkeys(range(count), 0)
        self._has_answered: set[int] = set()
        for number in range(count):
            pool.start(number)

    def submit(self, number: int, request: tuple[Any, ...]) -> None:
        """Send ``request``, the arguments of ``ActorWorker.answer``, to an actor that has no pending request."""
        self._requests[number] = (request, time.monotonic())
        self._pool.send(number, request)

    @property
    def busy(self) -> Collection[int]:
        """Numbers of the actors that have a pending request, or a result that was not taken yet."""
        return [*self._requests, *self._done]

    def take(self, numbers: Collection[int]) -> tuple[int, Any]:
        """Wait for a result of one of the actors ``numbers``; return ``(number, result)`` of the first one available.

        Raises:
            HostEnvError: an actor failed, or died or hung more than ``MAX_DEATHS`` times in a row.
        """
        while True:
            for number in numbers:
                if number in self._done:
                    return number, self._done.pop(number)
            self._receive(_POLL_SECONDS)

    def poll(self) -> None:
        """Receive available results without waiting; raise the same errors as ``take``."""
        self._receive(0.0)

    def is_done(self, number: int) -> bool:
        """Return True if the result of an actor is available."""
        return number in self._done

    def _receive(self, seconds: float) -> None:
        for number, kind, content in self._pool.answers(seconds):
            if number not in self._requests:
                continue
            if kind == "failed":
                raise HostEnvError(f"actor {number}: {content}")
            self._deaths[number] = 0
            self._has_answered.add(number)
            del self._requests[number]
            self._done[number] = content
        self._replace_the_dead()

    def _replace_the_dead(self) -> None:
        for number, (request, sent_at) in list(self._requests.items()):
            reason = self._pool.why_dead(number)
            late = time.monotonic() - sent_at
            if reason is None and self._pool.can_hang and number in self._has_answered and late > self._timeout:
                reason = f"did not answer for {late:.0f} s (limit: actors.timeout, or timeout of a Batcher)"
            if reason is None:
                continue
            self._deaths[number] += 1
            if self._deaths[number] > MAX_DEATHS:
                raise HostEnvError(f"actor {number} died {MAX_DEATHS + 1} times in a row; the last time it {reason}.")
            self.message(f"Actor {number} {reason}: it was replaced, and its unfinished episodes may restart.")
            self._pool.stop(number)
            self._pool.start(number)
            self._has_answered.discard(number)
            self.submit(number, request)

    def close(self) -> None:
        """Stop all actors."""
        self._pool.close()
