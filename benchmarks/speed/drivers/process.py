"""A complete process: its duration, or the time until it prints a given text, and its peak memory.

Settings: ``arguments`` of Python (a ``.py`` file from the repository root), ``until`` (a text: the first line that
contains it ends the measurement and the process), ``keep_cache`` (reuse the compiled programs of the previous start),
``warm_up`` (arguments of the previous start, by default the same), ``state_of`` (overrides of ``train.py``; the size of
the state of a training run with them is also reported).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared_lists import flat
from benchmarks.speed.child import Reading, read_settings, serve
from benchmarks.speed.measuring import ROOT

UNIT_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024


def run_process(arguments: Sequence[str], cache_home: str, until: str | None = None) -> dict[str, Any]:
    """Run Python with these arguments in a temporary folder.

    Args:
        arguments: arguments of Python.
        cache_home: the user's cache folder, for compiled programs.
        until: measure until a line contains this text, then end the process; ``None`` for its whole duration.

    Returns:
        ``seconds`` from the start, ``cpu_seconds`` (user and system) and ``peak_bytes`` of memory until the end.

    Raises:
        RuntimeError: the process failed, or did not print ``until``.
    """
    command = [sys.executable, *(str(ROOT / a) if a.endswith(".py") else a for a in arguments)]
    # Bytecode is cached as on a user's machine, where only the very first start compiles sources.
    left_out = {"JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["XDG_CACHE_HOME"] = cache_home
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
        assert process.stdout is not None, "opened as a pipe"
        was_printed = any(until is not None and until in line for line in process.stdout)
        seconds = time.perf_counter() - start
        if was_printed:
            process.kill()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
    if not was_printed and (until is not None or process.returncode):
        raise RuntimeError(f"{command} ended with {process.returncode}" + (f" before {until!r}" if until else ""))
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": usage.ru_maxrss * UNIT_OF_MAXRSS}


def bytes_of_training(overrides: Sequence[str]) -> int:
    """Return the bytes of the complete state of a training run: parameters, optimizers, environments, replay buffer."""
    import jax

    from evorl.assembly import workflow_from_config
    from evorl.cli.composition import compose_config
    from evorl.execution.plan import state_bytes

    workflow = workflow_from_config(compose_config(overrides))
    return state_bytes(jax.eval_shape(workflow.init, jax.random.key(0)))


def prepare() -> Any:
    settings = read_settings()
    arguments, until = flat(settings["arguments"]), settings.get("until")
    keep = settings.get("keep_cache", False)
    folder = Path(settings["cache"]).parent / "cache-of-processes"
    folder.mkdir(parents=True, exist_ok=True)
    constant: dict[str, Any] = {}
    if "state_of" in settings:
        constant["state_bytes"] = bytes_of_training(settings["state_of"])
    if keep:
        run_process(flat(settings.get("warm_up", arguments)), str(folder), until)

    def measure() -> Reading:
        with tempfile.TemporaryDirectory() as fresh:
            return {**run_process(arguments, str(folder) if keep else fresh, until), **constant}

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax", "mujoco-mjx", "gymnax", "evorl")
