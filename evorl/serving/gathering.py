"""Whether a server waits a moment before it answers: a call costs as much for eight questions as for one."""

from __future__ import annotations

import time

# The system rounds it up to some 75 microseconds, half of what the smallest call takes. Timers of asyncio are coarser.
PAUSE_SECONDS = 2e-5
LEAST_GAIN = 0.5  # questions that a pause must have brought of late
SHARE_OF_NEW = 0.125  # in the mean of what pauses brought
TURNS_BETWEEN_TRIALS = 32  # where pauses brought nothing


class Gathering:
    """Pauses where they pay: by what came of those before. Who is alone never waits.

    The pause is the whole thread's: the core is free for simulators of the same machine, which bring the questions.
    """

    def __init__(self) -> None:
        self._gain, self._turns = 2 * LEAST_GAIN, 0
        self._before: int | None = None  # questions there when the pause began

    def has_paused(self, num_asked: int, num_clients: int) -> bool:
        """Whether there was a pause, after which new questions should be read before all are answered."""
        if self._before is not None:
            self._gain += SHARE_OF_NEW * (num_asked - self._before - self._gain)
            self._before = None
            return False
        self._turns += 1
        if num_asked >= num_clients or (self._gain < LEAST_GAIN and self._turns % TURNS_BETWEEN_TRIALS):
            return False
        self._before = num_asked
        time.sleep(PAUSE_SECONDS)
        return True
