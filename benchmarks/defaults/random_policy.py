"""Return of random actions in the environment of a task, measured like the evaluations of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.defaults.gain import environment_of
from benchmarks.learning.judgment import scores
from benchmarks.learning.task import EVAL_EPISODES, LearningTask
from benchmarks.learning.training import train

SEEDS = 5
_STEPS = 1000  # environment steps of a run that does not learn; only its evaluation is used


def random_task(task: LearningTask) -> LearningTask:
    """Return the training of ``agent=random`` in the environment of a task."""
    environment = environment_of(task)
    overrides = ("agent=random", f"env={environment}", f"total_timesteps={_STEPS}", f"eval_interval={_STEPS}")
    name, title = f"random/{environment}", f"random actions, {environment}"
    return LearningTask(name, title, overrides, threshold=0.0, within_timesteps=_STEPS)


def random_return(task: LearningTask, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean return of random actions, with its overrides and the mean of each seed.

    Args:
        task: the task.
        results: recorded results; the measurement of another task in the same environment is reused.
    """
    overrides = list(random_task(task).overrides)
    measured = [result["random"] for result in results.values() if result["random"]["overrides"] == overrides]
    if measured:
        return measured[0]
    point = train(random_task(task), SEEDS)["curve"][-1]
    by_seed = scores(point)
    return {"overrides": overrides, "mean": point["mean"], "by_seed": by_seed, "episodes": EVAL_EPISODES * len(by_seed)}
