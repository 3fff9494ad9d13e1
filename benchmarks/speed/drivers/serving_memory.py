"""Memory of a training server during very many messages, whose steps become batches that a learner discards.

Settings: ``messages`` (1,000,000), ``clients`` (64), ``cache``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve
from benchmarks.speed.drivers.serving import Server
from benchmarks.speed.serving import loads, messages_as
from evorl.execution.runtime import prepare_runtime


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def prepare() -> Any:
    settings = read_settings()
    prepare_runtime(1, settings.get("cache") or False)
    server, messages = Server(records=True), settings.get("messages", 1_000_000)

    def resident_after(count: int, begun: int) -> int:
        while server.count() - begun < count:
            time.sleep(0.05)
        return resident_bytes()

    def measure() -> Reading:
        begun = server.count()
        with loads((server.addresses["rlx"], "rlx", settings.get("clients", 64), messages_as("rlx"))):
            early = resident_after(messages // 10, begun)
            late = resident_after(messages, begun)
        return {"early_bytes": early, "late_bytes": late, "added_bytes": late - early}

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "evorl")
