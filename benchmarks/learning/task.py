"""Learning tasks of ``tasks.yaml``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning.published import Published
from benchmarks.shared_lists import flat

EVAL_EPISODES = 20  # per seed and evaluation
TASK_FILE = Path(__file__).with_name("tasks.yaml")
Point = Mapping[str, Any]  # an evaluation: timesteps, seconds, mean, spread, and by_seed for several seeds


@dataclasses.dataclass(frozen=True)
class LearningTask:
    """A training run with the shipped configs, and its requirement; ``judgment.judge`` has the rules.

    Attributes:
        name: name on the command line.
        title: description.
        overrides: overrides for ``scripts/train.py``.
        published: published result; ``None`` for none.
        threshold: required mean over all seeds at the last evaluation within ``within_timesteps``.
        within_timesteps: maximum steps of the agent in each seed; later evaluations do not count.
        solvable: True if the threshold is reachable; unsolvable tasks must stay below it.
        score: judged column of the metrics.
        one_seed_at_a_time: True if each seed is a separate training run, as with actors.
        recorded_by: overrides of the training run that records the replay buffer; ``None`` for online learning.
        minutes: estimated duration of all seeds on one core; ``None`` for an estimate from the recorded duration.
    """

    name: str
    title: str
    overrides: Sequence[str]
    published: Published | None = None
    threshold: float | None = None
    within_timesteps: int | None = None
    solvable: bool = True
    score: str = "eval/episode_return"
    one_seed_at_a_time: bool = False
    recorded_by: Sequence[str] | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.published is None) == (self.threshold is None):
            raise ValueError(f"task {self.name!r} needs either a published figure or a threshold of our own, not both")
        if (self.threshold is None) != (self.within_timesteps is None):
            raise ValueError(f"task {self.name!r} needs both threshold and within_timesteps, or neither")
        if self.score.startswith("train/") and not self.one_seed_at_a_time:
            raise ValueError(
                f"task {self.name!r} is judged by {self.score}, which is a mean over the seeds of one program: set "
                "one_seed_at_a_time"
            )

    @property
    def agent(self) -> str:
        """The algorithm's file in ``configs/agent``."""
        return next(override.removeprefix("agent=") for override in self.overrides if override.startswith("agent="))

    @property
    def bound(self) -> float:
        """The required return (or score) of a seed, and of the mean if published seeds are not public."""
        if self.published is not None:
            return self.published.bar
        assert self.threshold is not None, "checked when the task is made"
        return self.threshold

    @property
    def limit(self) -> str:
        """Description of the requirement."""
        if self.published:
            at = f"at {self.published.timesteps:,} environment steps"
            if self.published.values is not None:
                return f"P(ours > theirs) not below 0.5 {at}"
            return f">= {self.bound:,.1f} {at}"
        quantity = "" if self.score == LearningTask.score else f"{self.score.partition('/')[2]} "
        bound = f"{quantity}{'>=' if self.solvable else '<'} {self.bound:g}"
        return f"{bound} {'at' if self.solvable else 'within'} {self.within_timesteps:,} steps"


def read_tasks(path: Path = TASK_FILE) -> dict[str, LearningTask]:
    """Return the tasks of a file by name.

    Raises:
        ValueError: a task has both a published figure and a threshold, or neither; its figure is incomplete, or its
            threshold has no ``within_timesteps``.
    """
    tasks = {}
    for name, fields in yaml.safe_load(path.read_text(encoding="utf-8"))["tasks"].items():
        published = Published(**fields.pop("published")) if "published" in fields else None
        if "recorded_by" in fields:
            fields["recorded_by"] = tuple(flat(fields["recorded_by"]))
        tasks[name] = LearningTask(name, overrides=tuple(flat(fields.pop("overrides"))), published=published, **fields)
    return tasks


def read_searches(path: Path = TASK_FILE) -> dict[str, str]:
    """Return, by agent, the sources and words of the searches that found fewer than three published figures."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))["searched"]


TASKS = read_tasks()
SEARCHES = read_searches()
