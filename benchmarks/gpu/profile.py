"""Profile of a program on a GPU: how many kernels an iteration launches, and how long the GPU is busy with them."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_LISTED = 4000  # maximum number of kernels, the last ones, that are written to the log
_SLOWEST = 12
Kernel = tuple[str, float, float]  # name, start and end in nanoseconds


def profile(run: Callable[[], Any], iterations: int) -> dict[str, Any]:
    """Return figures of one iteration, or nothing on a device without a trace of kernels, such as a CPU.

    The kernels are also listed on standard error.

    Args:
        run: runs the compiled program once.
        iterations: number of iterations of one run.

    Returns:
        ``launched``: kernels, copies and fills; ``busy_seconds``: time in which at least one of them runs;
        ``span_seconds``: time from the start of the first kernel to the end of the last, while profiled;
        ``slowest``: lists of name, number and seconds. All are of one iteration.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(run())
        (path,) = Path(folder).rglob("*.xplane.pb")
        kernels = sorted(_kernels(jax.profiler.ProfileData.from_file(str(path))), key=lambda kernel: kernel[1])
    for name, start, end in kernels[-_LISTED:]:
        print(f"{start - kernels[0][1]:.0f} {end - start:.0f} {name}", file=sys.stderr)
    return summary(kernels, iterations) if kernels else {}


def summary(kernels: list[Kernel], iterations: int) -> dict[str, Any]:
    """Return the figures of ``profile`` for kernels in order of their start."""
    numbers, seconds = Counter[str](), Counter[str]()
    busy, until = 0.0, kernels[0][1]
    for name, start, end in kernels:
        numbers[name] += 1
        seconds[name] += (end - start) / 1e9
        busy += max(0.0, end - max(start, until)) / 1e9
        until = max(until, end)
    slowest = [[name, numbers[name] / iterations, total / iterations] for name, total in seconds.most_common(_SLOWEST)]
    return {
        "launched": len(kernels) / iterations,
        "busy_seconds": busy / iterations,
        "span_seconds": (until - kernels[0][1]) / 1e9 / iterations,
        "slowest": slowest,
    }


def _kernels(data: Any) -> Iterable[Kernel]:
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):  # other lines repeat the events of the streams, by operation and module
                for event in line.events:
                    yield event.name, event.start_ns, event.start_ns + event.duration_ns
