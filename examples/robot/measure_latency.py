"""Measure the ONNX call and the jitter of a 50 Hz loop: ``python measure_latency.py policy.onnx``."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import re
import time
from pathlib import Path

import numpy as np
from control_loop import ControlLoop, OnnxPolicy, Report, percentiles


def measure(policy: OnnxPolicy, calls: int, ticks: int, hz: float = 50.0) -> tuple[list[float], Report]:
    """Return the times of single calls, and the measurements of a loop with a constant observation."""
    obs = np.zeros(policy.obs_shape, np.float32)
    for _ in range(min(100, calls)):  # the first calls allocate memory
        policy(obs)
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        policy(obs)
        seconds.append(time.perf_counter() - start)
    safe = np.clip(np.zeros(policy.low.shape), policy.low, policy.high)
    loop = ControlLoop(policy, lambda: (obs, time.perf_counter()), lambda action: None, safe, hz=hz)
    return seconds, loop.run(ticks)


def machine() -> str:
    """Return the date, the processor and the versions."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        cpuinfo = ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "numpy"))
    processor = model[1] if model else platform.processor() or "unknown processor"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {processor}, {platform.system()}, Python {platform.python_version()}, {versions}"


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", type=Path)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=1500)
    options = parser.parse_args()
    seconds, report = measure(OnnxPolicy(options.policy), options.calls, options.ticks)
    print(f"{machine()}\nONNX call: {percentiles(seconds)} over {len(seconds):,} calls\nloop: {report.describe()}")


if __name__ == "__main__":
    main()
