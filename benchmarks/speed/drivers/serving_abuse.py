"""A training server that receives broken frames while valid clients play: its memory, and missing responses.

Settings: ``frames`` (100,000), ``connections`` (50), ``clients`` (8, valid ones), ``seed``, ``cache``.
"""

from __future__ import annotations

import atexit
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve
from benchmarks.speed.drivers.serving import Server
from benchmarks.speed.drivers.serving_memory import resident_bytes
from benchmarks.speed.serving import Clients
from evorl.execution.runtime import prepare_runtime

USUAL_MESSAGES = 60_000  # messages of valid clients until memory use is steady
BEFORE_SECONDS = AFTER_SECONDS = 3.0
LEAVING_SECONDS = 15.0  # time for the server to notice disconnected clients


def become_usual(server: Server, honest: Mapping[str, Any]) -> None:
    """Run valid clients until the memory use of the server is steady."""
    begun = server.count()
    players = Clients("wire_honest", {**honest, "pause": 0.0})
    while server.count() - begun < USUAL_MESSAGES and not players.is_over:
        time.sleep(0.05)
    players.close()


def abused(server: Server, settings: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the actions of the misbehaving clients, and the peak memory of this process meanwhile."""
    names = ("frames", "connections", "seed")
    abusers = Clients("wire_abuse", {"addresses": server.addresses, **{k: settings[k] for k in names if k in settings}})
    most = resident_bytes()
    while not abusers.is_over:
        time.sleep(0.02)
        most = max(most, resident_bytes())
    return abusers.close(), most


class Errors(logging.Handler):
    """Counts errors that libraries log because nothing else handled them.

    Attributes:
        count: number of these errors.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0
        for name in ("asyncio", "aiohttp"):
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count and print the error."""
        self.count += 1
        print(self.format(record), flush=True)


def num_clients_left(server: Server) -> int:
    """Return the number of remaining sessions, after all clients disconnected and the server had time to notice."""
    end = time.monotonic() + LEAVING_SECONDS
    while server.switchboard.num_clients and time.monotonic() < end:
        time.sleep(0.05)
    return server.switchboard.num_clients


def prepare() -> Any:
    from evorl.serving.client_metrics import ClientMetrics

    settings = read_settings()
    prepare_runtime(1, settings.get("cache") or False)
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    server = Server(records=True, store_metric=ClientMetrics(Path(folder.name)).store)
    honest = {"addresses": server.addresses, "clients": settings.get("clients", 8)}

    errors = Errors()

    def measure() -> Reading:
        errors.count = 0
        become_usual(server, honest)
        players = Clients("wire_honest", honest)
        time.sleep(BEFORE_SECONDS)
        begun = resident_bytes()
        abuse, most = abused(server, settings)
        time.sleep(AFTER_SECONDS)
        ended, seen = resident_bytes(), players.close()
        newcomers = Clients("wire_honest", {**honest, "clients": 2})
        time.sleep(AFTER_SECONDS)
        seen_by_newcomers = newcomers.close()
        for failure in (*seen["failures"], *seen_by_newcomers["failures"]):
            print(failure, flush=True)
        return {
            "most_added_bytes": most - begun,
            "added_bytes": ended - begun,
            "lost_answers": seen["lost"] + len(seen["failures"]),
            "lost_afterwards": seen_by_newcomers["lost"] + len(seen_by_newcomers["failures"]),
            "left_errors": errors.count,
            "clients_left": num_clients_left(server),
            "honest_answers": seen["asked"] - seen["lost"],
            "answer_seconds": seen["answer_seconds"],
            "slow_answer_seconds": seen["slow_answer_seconds"],
            **abuse,
        }

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "aiohttp", "msgpack", "evorl")
