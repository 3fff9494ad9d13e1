"""Actors in this process: for tests, debugging, and workloads that do not benefit from other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evorl.actors.pool import ActorPool, ActorWorker
from evorl.envs.host.answers import refuse_exit


class InlinePool(ActorPool):
    """Actors in this process, which run sequentially when their results are requested."""

    can_hang = False

    def __init__(self, worker: type[ActorWorker], settings_of: Callable[[int], Any]) -> None:
        super().__init__(worker, settings_of)
        self._requests: dict[int, tuple[Any, ...]] = {}

    def start(self, number: int) -> None:
        self._actors[number] = self._worker(self._settings_of(number))

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        self._requests[number] = request

    def answers(self, timeout: float) -> list[tuple[int, str, Any]]:
        """Run the oldest request and return its response in a list, empty without requests; errors are raised."""
        if not self._requests:
            return []
        number = next(iter(self._requests))
        try:
            return [(number, "done", self._actors[number].answer(*self._requests.pop(number)))]
        except BaseException as error:
            refuse_exit(error, f"actor {number}")
            raise

    def why_dead(self, number: int) -> None:
        """Return ``None``: an inline actor cannot die."""

    def stop(self, number: int) -> None:
        self._actors.pop(number).close()
