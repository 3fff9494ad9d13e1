"""Runs measurements on the GPU of this machine by priority, in processes with time limits, within a total time.

``kit.yaml`` lists them by name: ``kind`` (``speed`` or a function of ``benchmarks.gpu.measured``), ``limit`` (seconds),
``environment`` (variables of the processes), and ``settings``. ``speed`` has the settings ``setting``, a name in
``settings.yaml`` (default: the name of the measurement), ``sides`` (default: all), and ``changes`` of evorl's settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu.setting import SETTINGS, Side
from benchmarks.gpu.tiny import shrunk, shrunk_overrides
from benchmarks.machine import about

ROOT = Path(__file__).resolve().parents[2]
KIT_FILE = Path(__file__).with_name("kit.yaml")
ROUNDS = 3
WINDOW_SECONDS = 1.0  # duration of one reading
LEAST_SECONDS = 20.0  # no measurement starts with less time left
READING_SECONDS = 6.0  # reserved for the readings of each measurement while programs are compiled
PROFILED = ("evorl", "rejax", "evosax")  # programs that answer a request for a profile
Report = Callable[[dict[str, Any]], None]
Sides = dict[str, tuple["Process", dict[str, Any]]]  # by name: process, and the row that it fills


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One measurement of ``kit.yaml``; the module documents the keys."""

    name: str
    kind: str
    limit: float
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def setting(self) -> str:
        """Name of the setting in ``settings.yaml``."""
        return self.settings.get("setting", self.name)

    def sides(self) -> dict[str, Side]:
        """Return the sides of the measurement by name, each with its program, or the kind in place of a program."""
        if self.kind not in ("speed", "bits"):
            return {"evorl": Side(self.kind, self.settings)}
        sides = {name: side for name, side in SETTINGS[self.setting].sides.items() if "devices" not in name}
        changed = {**sides["evorl"].settings, **self.settings.get("changes", {})}
        if self.kind == "bits":
            return {"evorl": Side("bits", changed)}
        sides["evorl"] = Side("evorl", changed)
        return {name: side for name, side in sides.items() if name in self.settings.get("sides", sides)}


def read_kit(path: Path = KIT_FILE) -> dict[str, Measurement]:
    """Return the measurements of a file by name, in order of priority."""
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))["measurements"]
    return {name: Measurement(name, **fields) for name, fields in listed.items()}


KIT = read_kit()


class NoAnswer(RuntimeError):
    """Raised if a process ended or ran out of time before it answered."""


class Process:
    """A child process, see ``benchmarks.gpu.measured``.

    Args:
        side: program or kind, and its settings.
        environment: its environment variables.
        log: file for its other output.
    """

    def __init__(self, side: Side, environment: Mapping[str, str], log: Path) -> None:
        self.program, self.log, self.answers = side.program, log, queue.Queue[str]()
        command = [sys.executable, "-m", "benchmarks.gpu.measured", side.program, json.dumps(side.settings)]
        with log.open("w") as errors:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=ROOT,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, request: str = "") -> None:
        """Request the next line: a reading, or a ``profile``."""
        assert self.child.stdin is not None, "opened as a pipe"
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(f"{request}\n")
            self.child.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the next response.

        Raises:
            NoAnswer: the process ended, or ``seconds`` have passed.
        """
        try:
            line = self.answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise NoAnswer("no answer within its time limit") from None
        if not line:
            lines = self.log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise NoAnswer(f"ended with status {self.child.wait()}: {lines[-1][:300]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self.child.stdout is not None, "opened as a pipe"
        with contextlib.suppress(ValueError):  # closed while reading
            for line in self.child.stdout:
                self.answers.put(line)
        self.answers.put("")


class Kit:
    """Runs measurements until the time is used up.

    Args:
        seconds: time for all measurements.
        folder: folder for logs.
        rejax_packages: folder with rejax and its packages; ``None`` omits rejax.
        tiny: use small sizes, for a dry run on a CPU.
        clock: returns seconds.
    """

    def __init__(
        self,
        seconds: float,
        folder: Path,
        rejax_packages: str | None = None,
        tiny: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.end, self.clock = clock() + seconds, clock
        self.folder, self.rejax_packages, self.tiny = folder, rejax_packages, tiny

    def run(self, measurements: Sequence[Measurement], report: Report) -> bool:
        """Measure; report a row for each side. Return False if no time was left.

        The programs of all measurements are compiled at the same time; then they are measured one after the other,
        the sides of a measurement in turn (A B A B), while the other processes wait.
        """
        if self.end - self.clock() < (0.0 if self.tiny else LEAST_SECONDS):
            return False
        with contextlib.ExitStack() as stack:
            started = [self._start(measurement, len(measurements), stack) for measurement in measurements]
            begun = self.clock()
            latest = self.end - READING_SECONDS * len(measurements) * (not self.tiny)
            for measurement, sides in zip(measurements, started, strict=True):
                self._prepare(measurement, sides, min(latest, begun + measurement.limit), report)
            for measurement, sides in zip(measurements, started, strict=True):
                if measurement.kind == "speed":
                    self._read(sides, min(self.end, self.clock() + measurement.limit), report)
                for process, _ in sides.values():
                    process.close()
        return True

    def _start(self, measurement: Measurement, together: int, stack: contextlib.ExitStack) -> Sides:
        """Start the processes of a measurement; return each with its row."""
        sides: Sides = {}
        for name, side in self._sides(measurement):
            log = self.folder / f"{measurement.name}-{name}.log"
            process = Process(side, self._environment(measurement, side, together), log)
            stack.callback(process.close)
            sides[name] = process, {"measurement": measurement.name, "side": name, **about()}
        return sides

    def _prepare(self, measurement: Measurement, sides: Sides, until: float, report: Report) -> None:
        """Wait for the first answer of each side; report and remove the sides that fail or need only one answer."""
        for name, (process, row) in list(sides.items()):
            with self._failures(row, report):
                row |= process.answer(until - self.clock())
            if "error" not in row and measurement.kind != "speed":
                report(row)
            if "error" in row or measurement.kind != "speed":
                process.close()
                del sides[name]

    def _read(self, sides: Sides, until: float, report: Report) -> None:
        """Take the readings of the sides in turn, then a profile of each."""
        readings: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, (process, row) in list(sides.items()):
                process.ask()
                with self._failures(row, report, readings[name]):
                    reading = process.answer(until - self.clock())
                    readings[name].append(reading.pop("steps_per_second"))
                    row |= reading
                if "error" in row:
                    del sides[name]
        for name, (process, row) in sides.items():
            row |= {"steps_per_second": statistics.median(readings[name]), "readings": readings[name]}
            if process.program in PROFILED:
                process.ask("profile")
                with contextlib.suppress(NoAnswer):  # a missing profile is not a failure
                    row |= process.answer(until - self.clock())
            report(row)

    @contextlib.contextmanager
    def _failures(self, row: dict[str, Any], report: Report, readings: list[float] | None = None) -> Iterator[None]:
        """Report a process without an answer, with the readings so far."""
        try:
            yield
        except NoAnswer as error:
            row["error"] = str(error)
            so_far = {"steps_per_second": statistics.median(readings), "readings": readings} if readings else {}
            report({**row, **so_far})

    def _sides(self, measurement: Measurement) -> Iterator[tuple[str, Side]]:
        for name, side in measurement.sides().items():
            if side.program == "rejax" and self.rejax_packages is None:
                continue
            settings = dict(side.settings)
            if self.tiny and measurement.kind in ("speed", "bits"):
                settings = {**shrunk(side.program, settings), "window": 0.05}
            elif self.tiny and measurement.kind == "learning":
                settings["overrides"] = shrunk_overrides(settings["overrides"])
            elif measurement.kind == "speed":
                settings["window"] = WINDOW_SECONDS
            yield name, Side(side.program, settings)

    def _environment(self, measurement: Measurement, side: Side, together: int) -> dict[str, str]:
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        paths = [self.rejax_packages or ""] * (side.program == "rejax") + [*inherited, str(ROOT)]
        share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # processes share the device
        if side.program == "tests":
            share["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "") or "cuda"  # tests use a CPU by default
        return {**os.environ, **share, **measurement.environment, "PYTHONPATH": os.pathsep.join(paths)}


def describe_row(row: Mapping[str, Any]) -> str:
    """Return a row as a line of console output."""
    parts = [f"{row['measurement']}, {row['side']}: {describe_result(row)}"]
    if "first_seconds" in row:
        parts.append(f"first call {row['first_seconds']:.1f} s")
    if "peak_bytes" in row:
        parts.append(f"peak {row['peak_bytes'] / 1e6:,.0f} MB, {row['device']}, jax {row['versions']['jax']}")
    return ", ".join(parts)


def describe_result(row: Mapping[str, Any]) -> str:
    """Return the figures of a row as text."""
    parts = []
    if "steps_per_second" in row:
        low, high = min(row["readings"]), max(row["readings"])
        parts.append(f"{row['steps_per_second']:,.0f} steps/s ({low:,.0f} .. {high:,.0f})")
    if "launched" in row:
        busy, span = row["busy_seconds"] / row["span_seconds"], row["span_seconds"] * 1e3
        parts.append(f"an iteration: {row['launched']:,.0f} kernels, GPU busy {busy:.0%} of {span:,.2f} ms")
    if "best" in row:
        verdict = "met" if row["met"] else "not met"
        parts.append(f"return {row['best']:,.1f} in {row['seconds']:.1f} s, required {row['at_least']:,.0f}: {verdict}")
    if "same_seed" in row:
        parts.append(f"same seed: {'equal' if row['same_seed'] else 'different'} bits")
        parts.append(f"continued: {'equal' if row['resumed'] else 'different'} bits")
    if "passed" in row:
        parts.append(f"{row['passed']} tests passed, {row['failed']} failed")
    if "error" in row:
        parts.append(f"failed: {row['error']}")
    return ", ".join(parts)
