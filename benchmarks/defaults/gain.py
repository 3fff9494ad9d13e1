"""Share of the published gain over a random policy that a training without tuned settings reaches.

The gain of a return is its difference to the return of random actions in the same environment, which ``agent=random``
measures. Half of the published gain is required. The published training may be longer, and have tuned settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.learning.judgment import judge
from benchmarks.learning.staleness import staleness
from benchmarks.learning.task import LearningTask, Point
from evorl.cli.config_tree import config_folder, settings_file

REQUIRED_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Gain:
    """Returns of a random policy, of ours, and of the published one, in one environment.

    Attributes:
        random: mean return of random actions.
        ours: mean return over seeds after a training without tuned settings.
        published: published mean return.
    """

    random: float
    ours: float
    published: float

    @property
    def share(self) -> float:
        """Share of the published gain: 0 is as random actions, 1 as published.

        Raises:
            ValueError: the published return is not larger than that of random actions.
        """
        if self.published <= self.random:
            raise ValueError(
                f"the published return {self.published:g} is not larger than {self.random:g} of random actions, so "
                "that there is no gain to compare with: remove the task, or correct its figure"
            )
        return (self.ours - self.random) / (self.published - self.random)

    @property
    def is_half(self) -> bool:
        """True if at least half of the published gain is reached."""
        return self.share >= REQUIRED_SHARE


@dataclasses.dataclass(frozen=True)
class GainRow:
    """A task with its result.

    Attributes:
        task: the task.
        result: the recorded result, or ``None``.
        stale: the reason why the result does not count; ``None`` if it counts.
        point: the last evaluation up to the published number of steps; ``None`` without a result that counts.
        gain: the returns at that evaluation; ``None`` without one.
    """

    task: LearningTask
    result: Mapping[str, Any] | None = None
    stale: str | None = None
    point: Point | None = None
    gain: Gain | None = None


def gain_row(task: LearningTask, result: Mapping[str, Any] | None) -> GainRow:
    """Return the row of a task. Only results with the settings of today count."""
    if result is None:
        return GainRow(task)
    stale = staleness(task, result)
    if stale is not None:
        return GainRow(task, result, stale)
    judgment = judge(task, result)
    if judgment.summary is None or judgment.point is None:
        return GainRow(task, result, "it has no evaluation within the published number of steps")
    assert task.published is not None
    gain = Gain(result["random"]["mean"], judgment.summary.mean, task.published.center)
    return GainRow(task, result, None, judgment.point, gain)


def gain_rows(tasks: Iterable[LearningTask], results: Mapping[str, Any]) -> list[GainRow]:
    """Return the rows of all tasks, in their order."""
    return [gain_row(task, results.get(task.name)) for task in tasks]


def environment_of(task: LearningTask) -> str:
    """Return the environment of a task, as on the command line: ``gymnasium/Pendulum-v1``."""
    return next(override.removeprefix("env=") for override in task.overrides if override.startswith("env="))


def applied_settings(task: LearningTask) -> str | None:
    """Return the file of settings that the training of a task uses; ``None`` for the general defaults."""
    name = settings_file(f"{task.agent}/{environment_of(task)}", config_folder())
    return name if (config_folder() / "experiment" / f"{name}.yaml").is_file() else None
