"""Share of the published gain over a random policy that a training run without tuned settings reaches.

The gain of a return is its difference from the return of random actions in the same environment, which ``agent=random``
measures. Half of the published gain is required. The published run may be longer and may use tuned settings.
"""

from __future__ import annotations

import dataclasses

from benchmarks.learning.tables import Row
from benchmarks.learning.task import LearningTask
from evorl.cli.config_tree import config_folder, settings_file

REQUIRED_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Gain:
    """Returns in one environment: of random actions, of our policy and of the published one.

    Attributes:
        random: mean return of random actions.
        ours: mean return over seeds after a training run without tuned settings.
        published: published mean return.
    """

    random: float
    ours: float
    published: float

    @property
    def share(self) -> float:
        """Share of the published gain: 0 for the return of random actions, 1 for the published return.

        Raises:
            ValueError: the published return is not larger than that of random actions.
        """
        if self.published <= self.random:
            raise ValueError(
                f"the published return {self.published:g} is not larger than {self.random:g}, the return of random "
                "actions, so there is no gain to compare with: remove the task, or correct its published figure"
            )
        return (self.ours - self.random) / (self.published - self.random)

    @property
    def is_half(self) -> bool:
        """True if at least half of the published gain is reached."""
        return self.share >= REQUIRED_SHARE


def gain_of(row: Row) -> Gain | None:
    """Return the gain at the last evaluation within the published steps; ``None`` if no result counts."""
    if row.result is None or row.judgment is None or row.judgment.summary is None:
        return None
    assert row.task.published is not None
    return Gain(row.result["random"]["mean"], row.judgment.summary.mean, row.task.published.center)


def environment_of(task: LearningTask) -> str:
    """Return the environment of a task, as on the command line: ``gymnasium/Pendulum-v1``."""
    return next(override.removeprefix("env=") for override in task.overrides if override.startswith("env="))


def applied_settings(task: LearningTask) -> str | None:
    """Return the file of settings that the training of a task uses; ``None`` for the general defaults."""
    name = settings_file(f"{task.agent}/{environment_of(task)}", config_folder())
    return name if (config_folder() / "experiment" / f"{name}.yaml").is_file() else None
