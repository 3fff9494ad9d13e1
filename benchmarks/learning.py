"""``python -m benchmarks.learning [names...]``: train by the shipped defaults and see what is reached, and when."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.child import versions
from benchmarks.configs import compose_config
from benchmarks.learning_tasks import TASKS, LearningTask
from benchmarks.results import about, record, show_learning

PACKAGES = ("jax", "jaxlib", "brax", "mujoco-mjx", "gymnax", "flax", "optax", "evorl")


class ScoreCurve:
    """A recorder that keeps a score, with the seconds since it was made.

    Args:
        score: the column of the rows.
        clock: tells seconds.
    """

    def __init__(self, score: str = LearningTask.score, clock: Callable[[], float] = time.perf_counter) -> None:
        self.score = score
        self.points: list[dict[str, Any]] = []
        self.timesteps = 0  # of each seed, at the last sign of life
        self._clock, self._start = clock, clock()

    @property
    def seconds(self) -> float:
        """Seconds since the curve was made."""
        return self._clock() - self._start

    def start(self, plan: Any) -> None:
        """Nothing to do."""

    def write(self, row: Mapping[str, float | int]) -> None:
        """Keep a row's score: the mean, of an evaluation over seeds and episodes, with the spread over seeds, or over
        the episodes of a single one.
        """
        if self.score not in row:
            return
        by_seed = [value for name, value in row.items() if name.startswith(f"{self.score}_seed_")]
        spread = row.get(f"{self.score}_std_over_seeds" if by_seed else f"{self.score}_std")
        point = {"timesteps": row["timesteps"], "seconds": self.seconds, "mean": row[self.score], "spread": spread}
        self.points.append({**point, **({"by_seed": by_seed} if by_seed else {})})

    def progress(self, timesteps: int, steps_per_second: float, latest: Mapping[str, float | int]) -> None:
        """Remember how far the training is."""
        self.timesteps = timesteps

    def message(self, text: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to close."""


def judge(task: LearningTask, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON: the first evaluation that counts and reaches the threshold (or none), the best and the last; and whether
    what is asked is met.
    """
    counted = [point for point in points if task.allows(point["timesteps"], point["seconds"])]
    reached = next((point for point in counted if point["mean"] >= task.threshold), None)
    return {
        "limit": task.limit,
        "met": (reached is not None) == task.solvable,
        "reached": reached,
        "best": max(points, key=lambda point: point["mean"], default=None),
        "last": points[-1] if points else None,
    }


def train(task: LearningTask, total_timesteps: int | None = None) -> dict[str, Any]:
    """Train as the command line does, recorded in a folder that is thrown away; JSON of what came of it."""
    from evorl.cli import build_workflow, prepare_for
    from evorl.recorders import make_recorder
    from evorl.recorders.recorder import RecorderGroup
    from evorl.run_folder import RunFolder

    overrides = list(task.overrides)
    if total_timesteps is not None:
        overrides = [o for o in overrides if not o.startswith("total_timesteps=")]
        overrides.append(f"total_timesteps={total_timesteps}")
    curve = ScoreCurve(task.score)
    config = compose_config(overrides)
    prepare_for({**config, "compilation_cache": False})
    workflow = build_workflow(config)
    most_seconds = float("inf") if task.within_minutes is None else 60 * task.within_minutes
    with tempfile.TemporaryDirectory() as folder:
        recorder = RecorderGroup([make_recorder(RunFolder.create(folder, config), live=False), curve])
        try:
            state = workflow.learn(key=config.seed, recorder=recorder, should_stop=lambda: curve.seconds > most_seconds)
        finally:
            recorder.close()
    return {
        "title": task.title,
        "overrides": overrides,
        "backend": config.env.get("backend"),
        "seeds": [config.seed + i for i in range(config.num_seeds)],
        "eval_episodes": config.eval_episodes,
        "num_devices": workflow.execution.num_devices,
        **judge(task, curve.points),
        "curve": curve.points,
        "timesteps": int(state.iterations) * workflow.timesteps_per_iteration or curve.timesteps,
        "seconds": curve.seconds,
        "versions": versions(*PACKAGES),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(TASKS)}; all by default")
    parser.add_argument("--total-timesteps", type=int, help="environment steps instead of those of the task")
    parser.add_argument("--record", action="store_true", help="write docs/results/learning.json and the pages")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(f"there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    failed = False
    for name in options.names or TASKS:
        print(f"{name}: {TASKS[name].title}", flush=True)
        result = {**train(TASKS[name], options.total_timesteps), **about()}
        result["command"] = f"python -m benchmarks.learning {name}"
        if options.total_timesteps is not None:
            result["command"] += f" --total-timesteps {options.total_timesteps}"
        print(show_learning(result), flush=True)
        if options.record:
            record("learning", name, result)
        failed |= not result["met"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
