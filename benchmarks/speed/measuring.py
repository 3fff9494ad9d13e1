"""Side-by-side measurements: one child process per side, used in turn, so that load affects all sides equally."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.speed.comparison import Comparison, Side

ROOT = Path(__file__).resolve().parent.parent.parent
ENDING_SECONDS = 10.0  # time for a child to end; then it is killed


class MeasurementFailed(RuntimeError):
    """Raised if a child process ended without a response."""


class Child:
    """A process that measures once for every line it receives; see ``benchmarks.speed.child``.

    Args:
        side: side to measure.
        python: the interpreter.
        cache: folder for compiled programs.
        log: file for the output of the child.
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
        """Return one measurement."""
        assert self.process.stdin is not None, "opened as a pipe"
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process by closing its input; it then ends its own children."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING_SECONDS)
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
    rounds: int,
    folder: Path,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every side once in each round, in turn.

    Args:
        comparison: sides and bars.
        pythons: interpreters by the names in ``Side.python``; by default this one.
        rounds: number of rounds; the comparison may have a smaller maximum.
        folder: for logs and compiled programs.
        report: function that receives a line about every round.

    Returns:
        JSON: title, versions by side, the largest ``load`` of the machine, and ``readings``, each with its side and
        round.
    """
    rows: list[dict[str, Any]] = []
    loads = []
    rounds = min(rounds, comparison.most_rounds or rounds)
    with ExitStack() as stack:
        children = {}
        for name, side in comparison.sides.items():
            python = pythons.get(side.python) or sys.executable
            log = folder / f"{comparison.name}-{name.replace(' ', '_')}.log"
            children[name] = Child(side, python, str(folder / f"cache-{side.python}"), log)
            stack.callback(children[name].close)
        for number in range(rounds):
            latest = []
            for name, child in children.items():
                reading = child.measure()
                rows.append({"side": name, "round": number, **reading})
                latest.append(f"{name} {comparison.show(reading)}")
            loads.append(os.getloadavg()[0])
            report(f"  {number + 1}/{rounds}  {'  '.join(latest)}")
        return {
            "title": comparison.title,
            "quantity": comparison.quantity,
            "versions": {name: child.versions for name, child in children.items()},
            "load": max(loads),
            "readings": rows,
        }
