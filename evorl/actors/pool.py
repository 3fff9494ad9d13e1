"""Where actors run: what is asked of processes of this machine, and of a cluster."""

from __future__ import annotations

import abc
from typing import Any

STARTING_SECONDS = 180.0  # that an actor has to import, to make its environments and to compile
SILENT_SECONDS = 6.0  # after which an actor without a sign of life is taken for hung


class ActorPool(abc.ABC):
    """Actors by number, each with one request at a time."""

    @abc.abstractmethod
    def start(self, number: int) -> None:
        """Start an actor; also in the place of one that was stopped."""

    @abc.abstractmethod
    def send(self, number: int, request: tuple[Any, ...]) -> None:
        """Ask for a rollout: the arguments of ``Worker.collect``. It is done when the actor has started."""

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
