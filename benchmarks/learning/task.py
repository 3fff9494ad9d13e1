"""Learning tasks of ``tasks.yaml``, and the judgment of learning curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning.statistics import center
from benchmarks.shared_lists import flat

EVAL_EPISODES = 20  # per seed and evaluation
NEARLY_AS_LONG = 0.9  # training runs with at least this fraction of the published steps are complete
TASK_FILE = Path(__file__).with_name("tasks.yaml")
Point = Mapping[str, Any]  # an evaluation: timesteps, seconds, mean, spread, and by_seed for several seeds


def value(point: Point) -> float:
    """Return the value of an evaluation that is judged: the center over its seeds."""
    return center(point["by_seed"]) if "by_seed" in point else point["mean"]


@dataclasses.dataclass(frozen=True)
class Published:
    """Published return of the same algorithm in the same environment, after a complete training.

    Attributes:
        by: its authors.
        source: URL of the page.
        timesteps: environment steps of their training.
        mean: the return after it.
        spread: the published standard deviation; ``None`` if none is published.
    """

    by: str
    source: str
    timesteps: int
    mean: float
    spread: float | None = None

    @property
    def lower(self) -> float:
        """The lower end of the published band; the return itself without a published spread."""
        return self.mean - (self.spread or 0.0)


@dataclasses.dataclass(frozen=True)
class Judgment:
    """Judgment of a learning curve.

    Attributes:
        met: true if the requirement is met.
        point: the evaluation that is judged: the last one within the limit; ``None`` if there was no evaluation.
        reached: the first evaluation that meets the requirement; ``None`` if none does.
        shorter: the training ended before the published number of steps.
    """

    met: bool
    point: Point | None
    reached: Point | None
    shorter: bool = False


@dataclasses.dataclass(frozen=True)
class LearningTask:
    """A training run with the shipped configs, and its requirement.

    With a published figure, the mean return at the published number of steps has to be in the published band or above
    it. Without one, some evaluation within ``within_timesteps`` or ``within_minutes`` has to reach ``threshold``.

    Attributes:
        name: name on the command line.
        title: description.
        overrides: overrides for ``scripts/train.py``.
        published: published result; ``None`` for none.
        threshold: required mean over all seeds.
        within_timesteps: maximum environment steps of each seed; or
        within_minutes: maximum minutes, including setup and compilation; the training ends then.
        solvable: True if the threshold is reachable; unsolvable tasks must stay below it.
        score: judged column of the metrics.
        one_seed_at_a_time: True if each seed is a separate training, as with actors.
        recorded_by: overrides of the training that records the replay buffer; ``None`` for online learning.
    """

    name: str
    title: str
    overrides: Sequence[str]
    published: Published | None = None
    threshold: float | None = None
    within_timesteps: int | None = None
    within_minutes: float | None = None
    solvable: bool = True
    score: str = "eval/episode_return"
    one_seed_at_a_time: bool = False
    recorded_by: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.published is None) == (self.threshold is None):
            raise ValueError(f"task {self.name!r} has a published figure or a threshold of our own: give one of them")

    @property
    def agent(self) -> str:
        """The algorithm's file in ``configs/agent``."""
        return next(override.removeprefix("agent=") for override in self.overrides if override.startswith("agent="))

    @property
    def bound(self) -> float:
        """The required return (or score)."""
        if self.published is not None:
            return self.published.lower
        assert self.threshold is not None, "checked when the task is made"
        return self.threshold

    @property
    def limit(self) -> str:
        """Description of the requirement."""
        if self.published:
            return f">= {self.bound:,.1f} at {self.published.timesteps:,} steps"
        quantity = "" if self.score == LearningTask.score else f"{self.score.partition('/')[2]} "
        bound = f"{quantity}{'>=' if self.solvable else '<'} {self.bound:g} within"
        if self.within_minutes is not None:
            return f"{bound} {self.within_minutes:g} minutes"
        return f"{bound} {self.within_timesteps:,} steps"

    def allows(self, point: Point) -> bool:
        """Return True if an evaluation counts."""
        if self.within_minutes is not None:
            return point["seconds"] <= 60 * self.within_minutes
        most = self.published.timesteps if self.published else self.within_timesteps
        return most is None or point["timesteps"] <= most

    def judge(self, curve: Sequence[Point]) -> Judgment:
        """Judge evaluations in their order."""
        counted = [point for point in curve if self.allows(point)]
        last = counted[-1] if counted else None
        if self.published:
            reached = next((point for point in curve if value(point) >= self.bound), None)
            shorter = not curve or curve[-1]["timesteps"] < NEARLY_AS_LONG * self.published.timesteps
            return Judgment(last is not None and value(last) >= self.bound, last, reached, shorter)
        reached = next((point for point in counted if value(point) >= self.bound), None)
        return Judgment((reached is not None) == self.solvable, last, reached)


def read_tasks(path: Path = TASK_FILE) -> dict[str, LearningTask]:
    """Return the tasks of a file by name.

    Raises:
        ValueError: a task has both a published figure and a threshold, or neither.
    """
    tasks = {}
    for name, fields in yaml.safe_load(path.read_text(encoding="utf-8"))["tasks"].items():
        published = Published(**fields.pop("published")) if "published" in fields else None
        if "recorded_by" in fields:
            fields["recorded_by"] = tuple(flat(fields["recorded_by"]))
        tasks[name] = LearningTask(name, overrides=tuple(flat(fields.pop("overrides"))), published=published, **fields)
    return tasks


TASKS = read_tasks()
