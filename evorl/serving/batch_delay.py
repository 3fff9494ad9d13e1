"""Adaptive batching delay: waits briefly for more requests, because a call for 8 requests costs the same as for 1.

Measured on two busy cores with a policy of 2 x 64 units and clients in another process (medians of 8 paired rounds of
1.2 s, with and without the delay). 8 clients that never pause: batches of 7.6 instead of 4.6 requests, 1.20 times the
messages per second, 0.76 times the processor time per message. 64 clients that pause for 10 ms: batches of 10.6 instead
of 5.3, the same rate, 0.78 times the processor time. 64 clients that never pause: the same rate within noise, 0.87
times the processor time.
"""

from __future__ import annotations

import time

# The system extends this sleep to about 75 microseconds, half of the shortest call; asyncio timers are coarser.
PAUSE_SECONDS = 2e-5
MIN_GAIN = 0.5  # minimum mean number of new requests per pause for pauses to be worthwhile
SHARE_OF_NEW = 0.125  # weight of the newest pause in the running mean
TURNS_BETWEEN_TRIALS = 32  # calls of has_paused between two trial pauses while pauses are not worthwhile


class BatchDelay:
    """Pauses before a batch if on average enough requests arrived during earlier pauses; otherwise only in rare trials.

    It never pauses when every client has a pending request, so a single client never waits. A pause blocks the whole
    thread, which leaves the core to simulators on the same machine.
    """

    def __init__(self) -> None:
        self._gain, self._turns = 2 * MIN_GAIN, 0
        self._before: int | None = None  # pending requests at the beginning of the pause

    def has_paused(self, num_asked: int, num_clients: int) -> bool:
        """Pause if worthwhile, or for a trial, and return True: read requests and call again. Else return False."""
        if self._before is not None:
            self._gain += SHARE_OF_NEW * (num_asked - self._before - self._gain)
            self._before = None
            return False
        self._turns += 1
        if num_asked >= num_clients or (self._gain < MIN_GAIN and self._turns % TURNS_BETWEEN_TRIALS):
            return False
        self._before = num_asked
        time.sleep(PAUSE_SECONDS)
        return True
