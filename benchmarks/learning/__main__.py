"""``python -m benchmarks.learning [names...]``: train with the shipped configs, and record learning curves."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.judgment import environment_steps, judge
from benchmarks.learning.schedule import pending, run_schedule, start_recording
from benchmarks.learning.staleness import staleness
from benchmarks.learning.tables import show_mean, show_number
from benchmarks.learning.task import TASKS, LearningTask
from benchmarks.learning.training import trainings
from benchmarks.machine import about, describe_commit
from benchmarks.pages import write_pages
from benchmarks.results import load, record
from evorl.config.names import no_such


def show(task: LearningTask, result: Mapping[str, Any]) -> str:
    """Return the requirement, the judged and the last evaluation of a task as console output."""
    judgment = judge(task, result)
    lines = [f"    required {task.limit}: {judgment.verdict if judgment.met else judgment.verdict.upper()}"]
    if judgment.summary is not None and judgment.point is not None:
        steps = environment_steps(judgment.point, result)
        seeds = f"{judgment.num_met} of {len(result['seeds'])} seeds meet it"
        lines.append(f"    judged: {show_mean(judgment.summary)} at {steps:,} environment steps; {seeds}")
    if judgment.improvement is not None:
        compared = judgment.improvement
        lines.append(f"    P(ours > theirs): {compared.probability:.2f} [{compared.low:.2f}, {compared.high:.2f}]")
    if result["curve"]:
        last = result["curve"][-1]
        lines.append(f"    last: {show_number(last['mean'])} at {environment_steps(last, result):,} environment steps")
    lines.append(f"    {result['timesteps']:,} steps of the agent in {result['seconds']:.0f} s")
    return "\n".join(lines)


def record_task(task: LearningTask, options: argparse.Namespace) -> bool:
    """Train and record a task; return True if it meets its requirement."""
    print(f"{task.name}: {task.title}", flush=True)
    earlier = load("learning").get(task.name) if options.more else None
    if earlier is not None and staleness(task, earlier) is not None:
        earlier = None
    recorded = earlier
    folder = None if options.folder is None else options.folder / describe_commit()
    for result in trainings(task, options.seeds, options.total_timesteps, earlier, folder):
        recorded = {**result, **about()}
        recorded["command"] = f"python -m benchmarks.learning {task.name} --seeds {len(result['seeds'])}"
        print(show(task, recorded), flush=True)
        if options.total_timesteps is None:  # recorded after each seed, so that a stop loses no finished seed
            record("learning", task.name, recorded)
            if not options.no_pages:
                write_pages()
    return recorded is not None and judge(task, recorded).met


def record_all(options: argparse.Namespace) -> bool:
    """Record all tasks that are missing or stale, then render the pages; return True if no such task is left."""
    minutes = pending(TASKS.values(), load("learning"), options.seeds)
    print(f"{len(minutes)} of {len(TASKS)} tasks to record, about {sum(minutes.values()) / 60:.1f} hours of one core")
    start = functools.partial(start_recording, num_seeds=options.seeds, folder=options.folder)
    show_line = functools.partial(print, flush=True)
    run_schedule(minutes, start, options.jobs, options.hours, show=show_line)
    write_pages()
    left = pending(TASKS.values(), load("learning"), options.seeds)
    print(f"left to record: {', '.join(left) or 'none'}")
    return not left


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(TASKS)}")
    parser.add_argument("--all", action="store_true", help="all tasks that are missing or stale, cheapest first")
    parser.add_argument("--jobs", type=int, default=1, help="with --all: number of parallel processes (default 1)")
    parser.add_argument("--hours", type=float, help="with --all: start no task that would end after this time")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, trained in parallel (default 5)")
    parser.add_argument(
        "--more", action="store_true", help="skip recorded seeds of tasks that train their seeds one after another"
    )
    parser.add_argument("--total-timesteps", type=int, help="replace the task's value; nothing is recorded then")
    parser.add_argument("--no-pages", action="store_true", help="do not regenerate the pages after recording")
    parser.add_argument(
        "--folder", type=Path, help="keep checkpoints here, and continue interrupted training runs of this commit"
    )
    options = parser.parse_args(arguments)
    if options.folder is not None and describe_commit().endswith("+"):
        parser.error("--folder needs a checkout without changes of code or configs: commit them first")
    if options.all == bool(options.names):
        parser.error("pass names of tasks, or --all")
    if options.all:
        if options.total_timesteps is not None:
            parser.error("--total-timesteps records nothing: pass names of tasks instead of --all")
        return int(not record_all(options))
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(no_such("task", unknown[0], TASKS))
    met = [record_task(TASKS[name], options) for name in options.names]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
