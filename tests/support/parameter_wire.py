"""A server of commands in a thread, and a parameter server of a few numbers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from evorl.ops.optimization import Optimizer
from evorl.parameter_server.commands import ParameterCommands
from evorl.parameter_server.update_rules import ParameterServerSettings, create
from evorl.parameter_server.wire import Command, CommandServer
from evorl.types import PyTreeDict


@contextlib.contextmanager
def served(commands: Mapping[str, Command], bind: str = "127.0.0.1:0", **options: Any) -> Iterator[str]:
    """The address at which these commands are answered; a failure of the server is raised at the end."""
    server, ready, told = CommandServer(commands, bind, **options), threading.Event(), {}

    async def run() -> None:
        told["loop"], told["end"] = asyncio.get_running_loop(), asyncio.Event()
        try:
            told["address"] = await server.start()
            ready.set()
            await told["end"].wait()
        finally:
            ready.set()
            await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield told["address"]
    finally:
        told["loop"].call_soon_threadsafe(told["end"].set)
        thread.join()
    if server.failure is not None:
        raise server.failure


def counting_commands(num_numbers: int, mode: str = "fifo", **options: Any) -> ParameterCommands:
    """A server whose parameters begin at 0, and from which each push is subtracted: what was applied can be counted."""
    settings = ParameterServerSettings(mode=mode, optimizer=Optimizer("sgd", 1.0))  # pyright: ignore[reportArgumentType]
    return ParameterCommands(settings, create(settings, PyTreeDict(w=jnp.zeros(num_numbers))), **options)
