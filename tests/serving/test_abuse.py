"""With misbehaving clients a server continues and reports them, and other clients lose nothing.

``python -m benchmarks.speed serving_abuse`` does the same with 100,000 frames, and measures memory.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from benchmarks.speed.wire_abuse import abuse
from benchmarks.speed.wire_honest import EPISODE_STEPS, play_together
from tests.serving.test_connections import Listening, listening
from tests.support.waiting import wait_until

pytest.importorskip("aiohttp", reason="clients over WebSocket need the extra serve")
FRAMES = 2000
CLIENTS = 4


class Players(threading.Thread):
    """Well-behaved clients that play until they are stopped."""

    def __init__(self, addresses: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._addresses = addresses
        self._begun, self._over = threading.Event(), threading.Event()
        self._results: dict[str, Any] = {}
        self.start()
        assert self._begun.wait(20.0)

    def run(self) -> None:
        """Run the clients."""
        state = np.array([0.9], np.float32)
        playing = play_together(
            self._addresses, self._over.is_set, CLIENTS, pause=0.002, state=state, all_began=self._begun.set
        )
        self._results = asyncio.run(playing)

    def stop(self) -> dict[str, Any]:
        """Stop the clients and return their observations."""
        self._over.set()
        self.join(30.0)
        return self._results


def recorded_steps(server: Listening) -> dict[int, list[int]]:
    """Return the recorded steps of each session in their order."""
    segments, steps = server.place.segments, defaultdict(list)
    for row in [*segments._full, *segments._left, *segments._open.values()]:
        for place in row.steps:
            session, step = place.arrays[0][place.row]
            steps[int(session)].append(int(step))
    return {session: sorted(kept) for session, kept in steps.items()}


@pytest.mark.usefixtures("few_objects")
def test_who_keeps_no_rule_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    with listening(web="127.0.0.1:0", max_clients=100) as server, caplog.at_level(logging.WARNING):
        addresses = {}
        for carrier, address in zip(("rlx", "websocket"), server.thread.addresses, strict=True):
            host, _, port = address.rpartition("//")[2].rpartition(":")
            addresses[carrier] = (host, int(port))
        players = Players(addresses)
        done = asyncio.run(abuse(addresses, connections=50, frames=FRAMES))
        tally = players.stop()

        assert done["frames"] == FRAMES
        assert done["connections"] > 200, "nobody was thrown out"
        assert done["answered"] > FRAMES / 2
        assert tally["failures"] == []
        assert tally["lost"] == 0
        assert tally["asked"] > 100 * CLIENTS
        assert [record.getMessage() for record in caplog.records] == [], "an error that was not put in words"

        wait_until(lambda: not server.switchboard.num_clients, 10.0)
        assert server.switchboard.failure is None
        # The earliest clients have the first numbers; two of the four are used for learning. A step is identified by
        # the request with its outcome; the first request of an episode contains no outcome.
        kept = recorded_steps(server)
        learners = [session for session in range(CLIENTS) if session in kept]
        assert len(learners) == CLIENTS / 2
        for session in learners:
            last = kept[session][-1]
            assert kept[session] == [step for step in range(last + 1) if step % EPISODE_STEPS]
        newcomers = Players(addresses)
        time.sleep(0.1)
        assert newcomers.stop()["lost"] == 0
    assert threading.active_count() == before
    gc.collect()  # leaked connections are detected here, not in another test
