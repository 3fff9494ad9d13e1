"""Measuring side by side: a child process for every side, asked in turn, so that a noisy machine is noisy to all."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.comparison import Comparison, Side

ROOT = Path(__file__).resolve().parent.parent


class MeasurementFailed(RuntimeError):
    """A child process ended without an answer."""


class Child:
    """A process that measures once for every line it is sent; see ``benchmarks.child``.

    Args:
        side: what to run.
        python: the interpreter.
        cache: folder for compiled programs.
        log: file for what the child prints.
    """

    def __init__(self, side: Side, python: str, cache: str, log: Path) -> None:
        self.log = log
        settings = json.dumps({"cache": cache, **side.settings})
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [python, "-m", side.module, settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except MeasurementFailed:
            self.close()
            raise

    def measure(self) -> dict[str, Any]:
        """One measurement."""
        assert self.process.stdin is not None, "opened as a pipe"
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None, "opened as a pipe"
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise MeasurementFailed(f"{' '.join(map(str, self.process.args[:3]))} ended early:\n{tail}")
        return json.loads(line)


def run_comparison(
    comparison: Comparison,
    pythons: Mapping[str, str],
    repeats: int,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every side ``repeats`` times, in turn.

    Args:
        comparison: what to compare.
        pythons: interpreters by the name that ``Side.python`` has.
        repeats: rounds.
        folder: for logs and compiled programs.
        say: told of every round.

    Returns:
        JSON: for each side its readings, their medians, and versions; for each bar its value and whether it is met.
    """
    readings: dict[str, list[dict[str, Any]]] = {name: [] for name in comparison.sides}
    versions: dict[str, dict[str, str]] = {}
    loads = []
    with ExitStack() as stack:

        def start(name: str) -> Child:
            side = comparison.sides[name]
            python = pythons.get(side.python) or sys.executable
            child = Child(side, python, str(folder / f"cache-{side.python}"), folder / f"{comparison.name}-{name}.log")
            versions[name] = child.versions
            stack.callback(child.close)
            return child

        kept = {name: start(name) for name, side in comparison.sides.items() if not side.fresh_process}
        for number in range(repeats):
            for name in comparison.sides:
                child = kept.get(name) or start(name)
                readings[name].append(child.measure())
                if name not in kept:
                    child.close()
            loads.append(os.getloadavg()[0])
            latest = "  ".join(f"{name} {comparison.show(found[-1])}" for name, found in readings.items())
            say(f"  {number + 1}/{repeats}  {latest}")
    medians = {name: _medians(found) for name, found in readings.items()}
    return {
        "title": comparison.title,
        "quantity": comparison.quantity,
        "sides": {
            name: {"median": medians[name], "readings": readings[name], "versions": versions[name]} for name in readings
        },
        "bars": [bar.judge(medians, _rounds(readings)) for bar in comparison.bars],
        "load": max(loads),
    }


def _medians(readings: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(reading[name] for reading in readings) for name in readings[0]}


def _rounds(readings: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, dict[str, Any]]]:
    """What the sides read in each round."""
    return [dict(zip(readings, found)) for found in zip(*readings.values())]
