"""Ends training early: at a target score, without improvement, after a time, or if a search prunes the trial."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from evorl.ops import processes
from evorl.runs.spec_parts import StopSettings

NEVER = StopSettings()


@dataclasses.dataclass
class EarlyStop:
    """Status of the conditions that end training early: the setting ``stop``, and a search that prunes the trial.

    Args:
        settings: conditions of the setting ``stop``.
        num_worse: number of evaluations since the best one.
        clock: returns a time in seconds; ``settings.hours`` count from the creation of this object.
        judge: called after an evaluation with its environment steps and score; returns a reason to stop, or ``None``.

    Attributes:
        reason: description of the condition that is met, for a message; ``None`` if none is met yet.
    """

    settings: StopSettings = NEVER
    num_worse: int = 0
    clock: Callable[[], float] = time.monotonic
    judge: Callable[[int, float], str | None] = lambda *_: None
    reason: str | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @classmethod
    def resumed(
        cls,
        settings: StopSettings,
        progress: Mapping[str, Any] | None,
        judge: Callable[[int, float], str | None] = lambda *_: None,
    ) -> EarlyStop:
        """Return an ``EarlyStop`` with ``num_worse`` from a checkpoint's ``progress`` (``None`` in a new run)."""
        return cls(settings, int((progress or {}).get("evaluations_since_best", 0)), judge=judge)

    def evaluated(self, timesteps: int, score: float, is_best: bool) -> None:
        """Count an evaluation, and set ``reason`` if the evaluation meets a condition.

        Args:
            timesteps: environment steps before the evaluation, per seed.
            score: score of the evaluation; NaN (no episode ended) does not count towards ``patience``.
            is_best: True if the score exceeds all earlier scores.
        """
        self.num_worse = 0 if is_best else self.num_worse + (not math.isnan(score))
        at, patience = self.settings.at, self.settings.patience
        if at is not None and score >= at:
            self.reason = f"the score {score:,.6g} reached stop.at={at:g}"
        elif patience is not None and self.num_worse >= patience:
            self.reason = f"{self.num_worse} evaluations did not improve the best score (stop.patience={patience})"
        if (reason := self.judge(timesteps, score)) is not None:
            self.reason = reason

    def is_met(self) -> bool:
        """Return True once a condition is met; all processes must call this method, and get the same result."""
        hours = self.settings.hours
        if self.reason is None and hours is not None and processes.any_says(self.clock() - self._start >= 3600 * hours):
            self.reason = f"the time limit stop.hours={hours:g} was reached"
        return self.reason is not None

    def to_json(self) -> dict[str, int]:
        """Return entries for a checkpoint's progress, which ``resumed`` reads; empty if ``patience`` is not set."""
        return {"evaluations_since_best": self.num_worse} if self.settings.patience is not None else {}
