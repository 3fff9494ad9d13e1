"""``python -m benchmarks.defaults [names...]``: train without tuned settings, and record the gain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.defaults.gain import gain_of
from benchmarks.defaults.page import missing
from benchmarks.defaults.random_policy import random_return
from benchmarks.defaults.task import TASKS
from benchmarks.learning.schedule import pending
from benchmarks.learning.tables import Row, row_of
from benchmarks.learning.task import LearningTask
from benchmarks.learning.training import train
from benchmarks.machine import about
from benchmarks.pages import write_pages
from benchmarks.results import load, record
from evorl.config.names import no_such


def show(row: Row) -> str:
    """Return the gain of a row as console output."""
    gain = gain_of(row)
    if gain is None:
        return f"    {missing(row)}"
    half = "half reached" if gain.is_half else "HALF NOT REACHED"
    returns = f"random {gain.random:,.2f}, ours {gain.ours:,.2f}, published {gain.published:,.2f}"
    return f"    {returns}: share {gain.share:.2f}, {half}"


def record_task(task: LearningTask, num_seeds: int) -> bool:
    """Train and record a task; return True if half of the published gain is reached."""
    print(f"{task.name}: {task.title}", flush=True)
    random = random_return(task, load("defaults"))
    result: dict[str, Any] = {**train(task, num_seeds), "random": random, **about()}
    result["command"] = f"python -m benchmarks.defaults {task.name} --seeds {num_seeds}"
    record("defaults", task.name, result)
    row = row_of(task, result)
    print(show(row), flush=True)
    gain = gain_of(row)
    return gain is not None and gain.is_half


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(TASKS)}")
    parser.add_argument("--all", action="store_true", help="all tasks that are missing or stale, cheapest first")
    parser.add_argument("--minutes", type=float, help="with --all: only tasks estimated to take at most this long")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, trained in parallel (default 1)")
    parser.add_argument("--no-pages", action="store_true", help="do not regenerate the pages after recording")
    options = parser.parse_args(arguments)
    if options.all == bool(options.names):
        parser.error("pass names of tasks, or --all")
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(no_such("task", unknown[0], TASKS))
    names = options.names
    if options.all:
        estimates = pending(TASKS.values(), load("defaults"), options.seeds)
        most = float("inf") if options.minutes is None else options.minutes
        names = [name for name, minutes in estimates.items() if minutes <= most]
    reached = [record_task(TASKS[name], options.seeds) for name in names]
    if not options.no_pages:
        write_pages()
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
