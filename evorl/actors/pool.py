"""Interface of actor pools, which run actors in this process, in other processes, or on a Ray cluster."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

STARTING_SECONDS = 180.0  # time limit for an actor's imports and the construction of its worker
SILENT_SECONDS = 6.0  # an actor without a heartbeat for this long counts as hung


class ActorWorker(Protocol):
    """Interface of an actor's worker, the object that processes requests; created from ``settings``."""

    def __init__(self, settings: Any, /) -> None: ...

    @property
    def answer(self) -> Callable[..., Any]:
        """The function that processes a request and returns the result."""
        ...

    def close(self) -> None:
        """Release all resources."""


class ActorPool(abc.ABC):
    """Pool of numbered actors, each with at most one pending request.

    Args:
        worker: class of an ``ActorWorker``; other processes import it by its name.
        settings_of: returns the settings of the worker for an actor's number; called whenever an actor starts.
    """

    can_hang: ClassVar[bool] = True  # False if actors run only inside ``answers``: a pending request is then never late

    def __init__(self, worker: type[ActorWorker], settings_of: Callable[[int], Any]) -> None:
        self._worker, self._settings_of = worker, settings_of
        self._actors: dict[int, Any] = {}

    @abc.abstractmethod
    def start(self, number: int) -> None:
        """Start actor ``number``, for the first time or after ``stop``."""

    @abc.abstractmethod
    def send(self, number: int, request: tuple[Any, ...]) -> None:
        """Send a request, the arguments of ``ActorWorker.answer``; it is processed once the actor has started."""

    @abc.abstractmethod
    def answers(self, timeout: float) -> list[tuple[int, str, Any]]:
        """Wait up to ``timeout`` s; return ``(number, "done", result)`` or ``(number, "failed", reason)`` tuples."""

    @abc.abstractmethod
    def why_dead(self, number: int) -> str | None:
        """Return why an actor can no longer respond, such as ``exited with 1``; ``None`` if it can."""

    @abc.abstractmethod
    def stop(self, number: int) -> None:
        """Stop an actor immediately; it may be dead already."""

    def close(self) -> None:
        """Stop all actors."""
        for number in list(self._actors):
            self.stop(number)
