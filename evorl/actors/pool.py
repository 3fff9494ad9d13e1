"""Where actors run: what is asked of processes of this machine, and of a cluster."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from evorl.config.names import load, no_such

STARTING_SECONDS = 180.0  # that an actor has to import, to make its environments and to compile
SILENT_SECONDS = 6.0  # after which an actor without a sign of life is taken for hung


_POOLS = {
    "inline": "evorl.actors.inline_pool:InlinePool",
    "process": "evorl.actors.process_pool:ProcessPool",
    "ray": "evorl.actors.ray_pool:RayPool",
}


class ActorWorker(Protocol):
    """What an actor has inside, wherever it runs; made from settings."""

    def answer(self, *request: Any) -> Any:
        """Do what was asked."""

    def close(self) -> None:
        """Give back what it holds."""


class ActorPool(abc.ABC):
    """Actors by number, each with one request at a time.

    Args:
        worker: the class of an ``ActorWorker``, ``"package.module:name"``, which is imported where the actor runs.
        settings_of: gives what the worker of the actor of this number is made from; asked each time one starts.
    """

    def __init__(self, worker: str, settings_of: Callable[[int], Any]) -> None:
        self._worker, self._settings_of = worker, settings_of

    @abc.abstractmethod
    def start(self, number: int) -> None:
        """Start an actor; also in the place of one that was stopped."""

    @abc.abstractmethod
    def send(self, number: int, request: tuple[Any, ...]) -> None:
        """Ask for an answer: the arguments of ``ActorWorker.answer``. It is done when the actor has started."""

    @abc.abstractmethod
    def answers(self, timeout: float) -> list[tuple[int, str, Any]]:
        """What has come within so many seconds: number, ``"done"`` with the result or ``"failed"`` with a sentence."""

    @abc.abstractmethod
    def why_dead(self, number: int) -> str | None:
        """In words why an actor will not answer any more; ``None`` while it may."""

    @abc.abstractmethod
    def stop(self, number: int) -> None:
        """End an actor at once; it may be dead already."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all actors; none is left behind."""


def make_pool(kind: str, worker: str, settings_of: Callable[[int], Any]) -> ActorPool:
    """A pool without actors yet.

    Args:
        kind: inline, process or ray.
        worker: see ``ActorPool``.
        settings_of: see ``ActorPool``.

    Raises:
        ValueError: there is no such kind.
        ImportError: Ray is asked for, and not installed.
    """
    if kind not in _POOLS:
        raise ValueError(no_such("kind of actors", kind, _POOLS))
    return load(_POOLS[kind])(worker, settings_of)
