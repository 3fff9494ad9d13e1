"""Published figures, tasks and results of the tests of the learning table."""

from __future__ import annotations

from typing import Any

from benchmarks.learning.published import Published
from benchmarks.learning.task import LearningTask

SOURCE: dict[str, Any] = {
    "by": "Somebody",
    "source": "https://example.org/table",
    "place": "line 7",
    "environment": "Some-v1",
    "timesteps": 200,
    "differences": "theirs is older",
}


def published(**fields: Any) -> Published:
    """Return a published figure: 7.0 after 200 steps, by one training."""
    return Published(**{**SOURCE, "spread_over": "one_run", "num_seeds": 1, "mean": 7.0, **fields})


def over_seeds(*values: float, **fields: Any) -> Published:
    """Return a published figure with the value of each seed."""
    return published(spread_over="seeds", num_seeds=len(values), mean=None, values=values, **fields)


def task(name: str = "task", **fields: Any) -> LearningTask:
    """Return a task of SAC with these fields; with a published figure of one training unless it has a threshold."""
    requirement = {} if "threshold" in fields or "published" in fields else {"published": published()}
    return LearningTask(name, "SAC, a task", ("agent=sac", "env=pendulum"), **{**requirement, **fields})


def point(timesteps: int, *by_seed: float, seconds: float = 1.0) -> dict[str, Any]:
    """Return an evaluation with the score of each seed."""
    mean = sum(by_seed) / len(by_seed)
    return {"timesteps": timesteps, "seconds": seconds, "mean": mean, "spread": 0.0, "by_seed": list(by_seed)}


def result(*curve: dict[str, Any], action_repeat: int | None = 1, **fields: Any) -> dict[str, Any]:
    """Return a result with these evaluations."""
    num_seeds = len(curve[0]["by_seed"]) if curve else 1
    return {
        "overrides": [],
        "config": {"env": {"action_repeat": action_repeat}},
        "seeds": list(range(num_seeds)),
        "curve": list(curve),
        "timesteps": curve[-1]["timesteps"] if curve else 0,
        "seconds": 60.0,
        "versions": {"jax": "1"},
        "machine": "2 cores",
        "date": "2026-01-02",
        "commit": "0123456789abcdef",
        **fields,
    }
