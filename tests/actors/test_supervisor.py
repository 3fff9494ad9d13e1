"""Actors that die repeatedly."""

from __future__ import annotations

from typing import Any

from evorl.actors import supervisor
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
