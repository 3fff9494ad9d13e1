"""``python -m benchmarks.learning [names...]``: train with the shipped configs, and record learning curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.learning.page import show_value
from benchmarks.learning.task import TASKS, LearningTask
from benchmarks.learning.training import trainings
from benchmarks.machine import about
from benchmarks.pages import write_pages
from benchmarks.results import load, record
from evorl.config.names import no_such


def show(task: LearningTask, result: Mapping[str, Any]) -> str:
    """Return the requirement, the results and the last evaluation of a task as console output."""
    judgment = task.judge(result["curve"])
    last = result["curve"][-1] if result["curve"] else None
    lines = [f"    required {task.limit}: {'met' if judgment.met else 'NOT MET'}"]
    for label, point in (("counts", judgment.point), ("reached at", judgment.reached), ("last", last)):
        if point is not None:
            lines.append(f"    {label}: {show_value(point)} at {point['timesteps']:,} steps")
    lines.append(f"    {result['timesteps']:,} steps in {result['seconds']:.0f} s")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, default=5, help="seeds, trained side by side (default 5)")
    parser.add_argument(
        "--more", action="store_true", help="leave out seeds that are recorded, of tasks that train one after another"
    )
    parser.add_argument("--total-timesteps", type=int, help="instead of the task's; then nothing is recorded")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(no_such("task", unknown[0], TASKS))
    failed = False
    for name in options.names or TASKS:
        task = TASKS[name]
        print(f"{name}: {task.title}", flush=True)
        recorded = earlier = load("learning").get(name) if options.more else None
        for result in trainings(task, options.seeds, options.total_timesteps, earlier):
            recorded = {**result, **about()}
            recorded["command"] = f"python -m benchmarks.learning {name} --seeds {len(result['seeds'])}"
            print(show(task, recorded), flush=True)
            if options.total_timesteps is None:  # after each seed, so that a stopped training loses none
                record("learning", name, recorded)
                write_pages()
        failed |= recorded is None or not task.judge(recorded["curve"]).met
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
