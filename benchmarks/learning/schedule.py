"""Records all learning tasks that are missing or stale, each in a separate process, cheapest first."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.learning.staleness import staleness
from benchmarks.learning.task import LearningTask

DEFAULT_MINUTES = 60.0  # estimate for a task without a record and without an estimate in its file
POLL_SECONDS = 1.0


class Process(Protocol):
    """The part of ``subprocess.Popen`` that the schedule needs."""

    def poll(self) -> int | None: ...


def minutes_of(task: LearningTask, result: Mapping[str, Any] | None, num_seeds: int) -> float:
    """Return the estimated duration: the task's ``minutes``, else the recorded one, scaled to the number of seeds."""
    if task.minutes is not None:
        return task.minutes
    if result is not None:
        return result["seconds"] / 60 * num_seeds / len(result["seeds"])
    return DEFAULT_MINUTES


def pending(tasks: Iterable[LearningTask], results: Mapping[str, Any], num_seeds: int) -> dict[str, float]:
    """Return the tasks to record with their estimated minutes, cheapest first.

    These are the tasks without a result, with a stale one, or with one of fewer than ``num_seeds`` seeds.
    """
    minutes = {}
    for task in tasks:
        result = results.get(task.name)
        if result is None or len(result["seeds"]) < num_seeds or staleness(task, result) is not None:
            minutes[task.name] = minutes_of(task, result, num_seeds)
    return dict(sorted(minutes.items(), key=lambda item: item[1]))


def start_recording(name: str, num_seeds: int, folder: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that trains and records one task, without rendering the pages; ``folder`` keeps checkpoints."""
    arguments = [name, "--seeds", str(num_seeds), "--more", "--no-pages"]
    arguments += [] if folder is None else ["--folder", str(folder)]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.learning", *arguments])


def run_schedule(
    minutes: Mapping[str, float],
    start: Callable[[str], Process],
    jobs: int = 1,
    hours: float | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    show: Callable[[str], None] = print,
) -> list[str]:
    """Run tasks until all have ended, or until the remaining time does not suffice for the next one.

    Args:
        minutes: estimated duration of each task, in the order in which they start.
        start: starts the process of a task.
        jobs: maximum number of processes at a time.
        hours: time limit for estimated ends; processes that are running are awaited. ``None`` for no limit.
        clock: returns seconds.
        sleep: waits that many seconds.
        show: prints a line.

    Returns:
        The tasks that were not started, in their order.
    """
    deadline = float("inf") if hours is None else clock() + 3600 * hours
    waiting, running = list(minutes), dict[str, Process]()
    while waiting or running:
        while waiting and len(running) < jobs and clock() + 60 * minutes[waiting[0]] <= deadline:
            name = waiting.pop(0)
            show(f"{name}: started, about {minutes[name]:.0f} minutes; {len(waiting)} tasks left")
            running[name] = start(name)
        if not running:
            break
        for name in _ended(running):
            show(f"{name}: ended")
            del running[name]
        if running:
            sleep(POLL_SECONDS)
    return waiting


def _ended(running: Mapping[str, Process]) -> Sequence[str]:
    return [name for name, process in running.items() if process.poll() is not None]
