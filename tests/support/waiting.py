"""Waiting for other threads, processes and clients."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 5.0) -> None:
    """Return once ``holds()`` is true.

    Raises:
        AssertionError: it is still false after ``seconds``.
    """
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not come to that in {seconds:g} seconds"
        time.sleep(0.01)
