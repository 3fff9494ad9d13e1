"""A training that is to reach something, and what others publish of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Published:
    """A training of others on the same task, as they publish it.

    It says how long they trained, not when they passed a threshold.

    Attributes:
        by: whose it is.
        source: where it stands, a link.
        timesteps: its environment steps.
        mean: the return after it, if they tell it.
        spread: the standard deviation of that.
    """

    by: str
    source: str
    timesteps: int
    mean: float | None = None
    spread: float | None = None


@dataclasses.dataclass(frozen=True)
class LearningTask:
    """A training, by the defaults that are shipped, and what it has to reach.

    Attributes:
        name: by which the command line chooses it.
        title: what is learned.
        overrides: of ``scripts/train.py``.
        threshold: the mean evaluation return over all seeds that counts as reached, or the mean of another ``score``.
        within_timesteps: environment steps of each seed it may take; or
        within_minutes: minutes it may take, set-up and compilation included; the training ends then.
        solvable: whether it is to be reached at all; a task without what it needs has to stay below.
        published: what others need for the same; ``None`` where nothing was found.
        score: the column of the rows of metrics that is judged.
    """

    name: str
    title: str
    overrides: Sequence[str]
    threshold: float
    within_timesteps: int | None = None
    within_minutes: float | None = None
    solvable: bool = True
    published: Published | None = None
    score: str = "eval/episode_return"

    @property
    def agent(self) -> str:
        """The algorithm's file in ``configs/agent``."""
        return next(override.removeprefix("agent=") for override in self.overrides if override.startswith("agent="))

    @property
    def limit(self) -> str:
        """What is asked, in words."""
        what = "" if self.score == LearningTask.score else f"{self.score.partition('/')[2]} "
        bound = f"{what}{'>=' if self.solvable else '<'} {self.threshold:g} within"
        if self.within_minutes is not None:
            return f"{bound} {self.within_minutes:g} minutes"
        return f"{bound} {self.within_timesteps:,} steps"

    def allows(self, timesteps: int, seconds: float) -> bool:
        """Whether an evaluation then still counts."""
        if self.within_minutes is not None:
            return seconds <= 60 * self.within_minutes
        return self.within_timesteps is None or timesteps <= self.within_timesteps
