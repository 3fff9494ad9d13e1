"""Runs an app's processes: starts the servers, then the environments; stops the servers when those have ended."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evorl.apps.app_config import Address, RunSettings
from evorl.apps.child import Child
from evorl.apps.prefixed_log import PrefixedLog

_LOOK_SECONDS = 0.05
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
_LOG_NAME = "run"  # log name of this process


class Program(NamedTuple):
    """A program to start.

    Attributes:
        name: name in the log.
        command: argument list, run without a shell; empty for a server that is started elsewhere and only awaited here.
        variables: environment variables, added to the inherited ones.
        listens: address at which the server listens when ready; ``None`` if the program is not a server.
        needed: True if environments wait for the program and cannot continue without it.
    """

    name: str
    command: Sequence[str]
    variables: Mapping[str, str] = {}
    listens: Address | None = None
    needed: bool = True


def supervise(
    servers: Sequence[Program], environments: Sequence[Program], folder: Path, settings: RunSettings, log: PrefixedLog
) -> int:
    """Run the processes of an app. Ctrl-C or SIGTERM ends all of them; a second signal kills them immediately.

    Environments start when all needed servers listen. When all environments have ended, or a needed server has ended,
    the remaining processes are terminated: environments first, then servers in reverse order. A program that cannot be
    started raises ``ValueError``. When this function returns or raises, all processes and their descendants have ended.

    Args:
        servers: servers in the order in which they start.
        environments: simulators; empty to run only servers.
        folder: working directory of all processes.
        settings: timeouts.
        log: destination of the output of all processes.

    Returns:
        Exit status: 0; 1 if a needed process failed or did not start; 128 plus the number of the first signal received.
    """
    serving: list[Child] = []
    players: list[Child] = []
    with _signals() as received:
        try:
            running = _start(servers, folder, settings, log, serving, received)
            if running is not None and not received:
                for program in environments:
                    players.append(Child(program.name, program.command, folder, program.variables, log))
                _wait(players, running, log, received)
            if players and not received and all(player.status is not None for player in players):
                log.say(
                    _LOG_NAME, f"{len(players)} {'environment has' if len(players) == 1 else 'environments have'} ended"
                )
        finally:
            _end(players, settings.stop_seconds, log, received)  # the servers save after the simulators have ended
            for server in reversed(serving):  # dependent processes end first
                _end([server], settings.stop_seconds, log, received)
    if received:
        return 128 + received[0]
    counted = {program.name for program in (*servers, *environments) if program.needed}
    failed = [child for child in (*serving, *players) if child.failed and child.name in counted]
    for child in failed:
        log.say(_LOG_NAME, f"{child.name} failed with status {child.status}")
    return 1 if failed or running is None else 0


def _start(
    servers: Sequence[Program],
    folder: Path,
    settings: RunSettings,
    log: PrefixedLog,
    serving: list[Child],
    received: list[int],
) -> list[Child] | None:
    """Start the servers and return the needed ones; ``None`` if a needed server does not become ready."""
    needed: list[Child] = []
    for program in servers:
        child = None
        if program.command:
            if program.listens is not None and _listens(program.listens):
                remedy = "the address is in use. End the other program, or change bind in app.yaml"
                log.say(_LOG_NAME, f"{program.name} cannot listen on {program.listens}: {remedy}")
                if program.needed:
                    return None
                continue
            child = Child(program.name, program.command, folder, program.variables, log)
            serving.append(child)
        if program.needed:
            needed += [] if child is None else [child]
            if not _wait_until_ready(program, child, settings.start_seconds, log, received):
                return None
    return needed


def _wait_until_ready(
    program: Program, child: Child | None, seconds: float, log: PrefixedLog, received: Sequence[int]
) -> bool:
    """Wait for a server to listen; return False if it ends, times out, or a signal arrives."""
    name, address, started = program.name, program.listens, time.monotonic()
    while address is not None and not received:
        if child is not None and child.status is not None:
            log.say(_LOG_NAME, f"{name} ended before it was ready")
            return False
        if _listens(address):
            log.say(_LOG_NAME, f"{name} is ready at {address} after {time.monotonic() - started:.1f} s")
            return True
        if time.monotonic() > started + seconds:
            log.say(_LOG_NAME, f"{name} is not ready at {address} after {seconds:g} s (run.start_seconds)")
            return False
        time.sleep(_LOOK_SECONDS)
    return not received


def _listens(address: Address) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    try:
        with socket.create_connection((host, address.port), timeout=1.0):
            return True
    except OSError:
        return False


def _wait(players: Sequence[Child], servers: Sequence[Child], log: PrefixedLog, received: Sequence[int]) -> None:
    """Wait until all environments (``players``) have ended, a needed server has ended, or a signal arrives."""
    while not received:
        if players and all(player.status is not None for player in players):
            return
        ended = [server for server in servers if server.status is not None]
        if ended:
            log.say(_LOG_NAME, f"{ended[0].name} has ended, which ends the run")
            return
        if not players and not servers:
            return
        time.sleep(_LOOK_SECONDS)


def _end(children: Sequence[Child], seconds: float, log: PrefixedLog, received: Sequence[int]) -> None:
    """Terminate processes, wait, and kill the remaining ones. A second signal ends the wait."""
    for child in children:
        child.request_end()
    until = time.monotonic() + seconds
    for child in children:
        while not child.wait(min(until, time.monotonic() + _LOOK_SECONDS)) and len(received) < 2:
            if time.monotonic() > until:
                log.say(_LOG_NAME, f"{child.name} did not end within {seconds:g} s: killing it")
                break
        child.end()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Record termination signals within the context; the previous handlers are restored afterwards."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    wakeup = signal.set_wakeup_fd(-1)

    def note(number: int, frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in _ENDING}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
