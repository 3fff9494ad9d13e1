"""Handles Ctrl-C and SIGTERM: training saves and stops; a second signal, or one outside training, ends the process.

Python runs signal handlers only between bytecode instructions, not while JAX compiles or runs a program. Here the
signal number is sent through a socket to a thread, which can end the process at any time, without a traceback.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ENDING = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = "\x1b[?25h"  # the live progress display hides it


class _Stop:
    """A stoppable training run: received signals, and its ``advice`` if the process ends before the run stops."""

    def __init__(self, advice: Callable[[], str] | None) -> None:
        self.received: list[int] = []
        self.advice = advice


_stops: list[_Stop] = []  # nested contexts, innermost last


@contextmanager
def handled_signals() -> Iterator[None]:
    """Context in which SIGINT or SIGTERM prints a line and ends the process (status 130, 143); see ``stop_on_signals``.

    Outside the main thread, where Python does not allow signal handlers, the context has no effect.
    """
    is_watching = signal.getsignal(signal.SIGINT) is _left_to_the_thread
    if threading.current_thread() is not threading.main_thread() or is_watching:
        yield
        return
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    watching = threading.Thread(target=_watch, args=(receiving,), name="signals", daemon=True)
    watching.start()
    before_fd = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    # A shell starts background jobs with SIGINT ignored; they should be stoppable as well.
    before = {number: signal.signal(number, _left_to_the_thread) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        sending.close()
        watching.join()
        receiving.close()


@contextmanager
def stop_on_signals(advice: Callable[[], str] | None = None) -> Iterator[Callable[[], bool]]:
    """Request a stop on the first SIGINT or SIGTERM; a second one prints ``advice()`` and ends the process.

    Yields:
        A function that returns True once a stop was requested.
    """
    stop = _Stop(advice)
    with handled_signals():
        _stops.append(stop)
        try:
            yield lambda: bool(stop.received)
        finally:
            _stops.remove(stop)


def resume_advice(command: str, can_resume: object = True) -> str:
    """Return how to continue a training that ended early; ``can_resume`` is false for a run without a checkpoint."""
    return f" Its checkpoints are kept. To resume: {command}" if can_resume else " No checkpoint was saved: start over."


def _left_to_the_thread(number: int, frame: object) -> None:
    """Do nothing; Python writes a signal's number to the socket only if the signal has a Python handler."""


def _watch(receiving: socket.socket) -> None:
    while numbers := receiving.recv(64):
        for number in numbers:
            if number not in ENDING:
                continue
            if _stops and not _stops[-1].received:
                for stop in _stops:  # also the sweep or search of this run
                    stop.received.append(number)
                if _stops[-1].advice:  # training, whose current iteration or evaluation may take minutes
                    _write(
                        f"{signal.Signals(number).name}: stopping after this iteration; a second signal exits at once."
                    )
            else:
                _end_process(number)


def _end_process(number: int) -> None:
    """End the process immediately, without an exception, which could be raised in code that cannot handle it."""
    try:
        advice = _stops[-1].advice if _stops else None
        _write(f"{signal.Signals(number).name}: ended.{advice() if advice else ''}", SHOW_CURSOR)
    finally:
        os._exit(128 + number)


def _write(line: str, control: str = "") -> None:
    """Write a line to standard error; on a terminal after ``control`` and a line break, below the live progress."""
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        line = f"{control}\n{line}"
    # The main thread may hold the lock of sys.stderr, so write to the file descriptor.
    with suppress(OSError):  # Ctrl-C has also ended the reader of a pipe, such as tee
        os.write(2, f"{line}\n".encode("ascii", "backslashreplace"))
