"""Child process of a measurement: reads settings, then measures once per input line and responds in JSON.

Peers import this module in separate virtual environments, so it requires only the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.machine import versions

Reading = Mapping[str, Any]


def read_settings() -> dict[str, Any]:
    """Return the settings of this child: the JSON object in its first argument."""
    return json.loads(sys.argv[1])


def serve(prepare: Callable[[], Callable[[], Reading]], *packages: str) -> None:
    """Prepare (compile, warm up), then answer every line of standard input with one measurement.

    All other output is redirected to standard error. A measurement during which the process was stopped (job control)
    is repeated.

    Args:
        prepare: prepares and returns the function that measures once.
        packages: packages whose versions are reported.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure = prepare()
    print(json.dumps({"ready": True, "versions": versions(*packages)}), file=answers, flush=True)
    continued: list[int] = []
    signal.signal(signal.SIGCONT, lambda number, frame: continued.append(number))
    for _ in sys.stdin:
        continued.clear()
        reading = measure()
        while continued:
            continued.clear()
            reading = measure()
        print(json.dumps(reading), file=answers, flush=True)


def timed(steps: int | None, run: Callable[[], int | None]) -> dict[str, Any]:
    """Return the reading of ``run``, which takes ``steps`` environment steps; ``None`` if ``run`` returns their number.

    Steps per second are the result; steps per second of processor time, over all threads, depend less on the load of
    the machine.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    counted = run()
    steps = counted or 0 if steps is None else steps
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "steps": steps,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "steps_per_second": steps / seconds,
        "steps_per_cpu_second": steps / cpu_seconds,
    }
