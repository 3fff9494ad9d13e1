"""Ctrl-C and SIGTERM: a training saves and stops; a second one, or one at any other moment, ends the process.

Python runs handlers of signals between its own instructions only, so not while a program is compiled or runs. Here the
number of a signal goes through a socket to a thread, which can end the process at any moment, without a traceback.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = "\x1b[?25h"  # a live panel hides it


class _Stop:
    """A training that may be asked to stop: the signals that asked, and what to say if it is ended before it has."""

    def __init__(self, way_on: str) -> None:
        self.received: list[int] = []
        self.way_on = way_on


_stops: list[_Stop] = []  # the innermost last


@contextmanager
def signals_in_words() -> Iterator[None]:
    """Within: SIGINT and SIGTERM end the process with one line and status 130 or 143, unless a training is to stop.

    Outside of the main thread, where Python lets nobody handle signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or _is_watching():
        yield
        return
    receiving, sending = socket.socketpair()
    sending.setblocking(False)
    watching = threading.Thread(target=_watch, args=(receiving,), name="signals", daemon=True)
    watching.start()
    before_fd = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
    # A shell starts background jobs with SIGINT ignored: they are to be stopped all the same.
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
def stop_on_signals(way_on: str = "") -> Iterator[Callable[[], bool]]:
    """Within: the first SIGINT or SIGTERM asks for a stop, a second one ends the process.

    Args:
        way_on: the command that goes on with the training, to be named in what is said at the end.

    Yields:
        Whether a stop was asked for.
    """
    stop = _Stop(f" Its checkpoints are kept; to go on: {way_on}" if way_on else "")
    with signals_in_words():
        _stops.append(stop)
        try:
            yield lambda: bool(stop.received)
        finally:
            _stops.remove(stop)


def _is_watching() -> bool:
    return signal.getsignal(signal.SIGINT) is _left_to_the_thread


def _left_to_the_thread(number: int, frame: object) -> None:
    """Python writes numbers of signals to the socket only where it has a handler for them."""


def _watch(receiving: socket.socket) -> None:
    while numbers := receiving.recv(64):
        for number in numbers:
            if number not in ENDING:
                continue
            if _stops and not _stops[-1].received:
                _stops[-1].received.append(number)
            else:
                _end_process(number)


def _end_process(number: int) -> None:
    """End at once. Not by an exception, which any of a hundred lines may be in no state to meet."""
    line = f"{signal.Signals(number).name}: ended.{_stops[-1].way_on if _stops else ''}\n"
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        line = f"{SHOW_CURSOR}\n{line}"
    # Not by sys.stderr, whose lock the main thread may hold.
    os.write(2, line.encode("ascii", "backslashreplace"))
    os._exit(128 + number)
