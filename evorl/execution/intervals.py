"""Intervals between metric rows, evaluations and checkpoints, independent of time and of the speed of the machine.

Settings are in environment steps. With a fixed number of steps per iteration, an interval is a number of iterations.
Otherwise, an event is due after each iteration in which the steps reach another multiple of the interval.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np

_NEVER = 2**62  # iterations or steps that no run reaches; numbers are compared as int64


class Interval(Protocol):
    """Interval between two occurrences of a periodic event."""

    def is_due(self, iterations: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        """Return a mask of the N iterations after which the event is due, bool ``[N]``.

        Args:
            iterations: number of completed iterations before the N iterations and after each of them, ``[N + 1]``.
            timesteps: environment steps at these times, ``[N + 1]``.
        """
        ...

    def until_due(self, iterations: int, timesteps: int, max_steps: int) -> int:
        """Return a number of iterations, at least 1: the event cannot be due before all of them are completed.

        Args:
            iterations: number of iterations so far.
            timesteps: environment steps so far.
            max_steps: largest number of environment steps per iteration.
        """
        ...


@dataclasses.dataclass(frozen=True)
class EveryIterations:
    """Event that is due whenever the number of iterations since ``offset`` is a multiple of ``number``."""

    number: int
    offset: int = 0

    def is_due(self, iterations: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        """Return a mask of the N iterations after which the event is due, bool ``[N]``."""
        return (iterations[1:] - self.offset) % self.number == 0

    def until_due(self, iterations: int, timesteps: int, max_steps: int) -> int:
        """Return the number of iterations until the event is due."""
        return self.number - (iterations - self.offset) % self.number


@dataclasses.dataclass(frozen=True)
class EverySteps:
    """Event that is due after each iteration in which the environment steps reach a multiple of ``number``."""

    number: int

    def is_due(self, iterations: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        """Return a mask of the N iterations after which the event is due, bool ``[N]``."""
        reached = timesteps // self.number
        return reached[1:] > reached[:-1]

    def until_due(self, iterations: int, timesteps: int, max_steps: int) -> int:
        """Return the smallest number of iterations after which the event may be due."""
        return math.ceil((self.number - timesteps % self.number) / max_steps)


def every(
    timesteps: float, steps_per_iteration: int, num_seeds: int = 1, rows: Interval | None = None
) -> EveryIterations | EverySteps | None:
    """Return the interval for a setting in environment steps; ``None`` for never.

    Args:
        timesteps: environment steps per seed; 0 for never.
        steps_per_iteration: environment steps of an iteration per seed; 0 if the number varies.
        num_seeds: number of seeds; if ``steps_per_iteration`` is 0, the interval counts the steps of all seeds.
        rows: interval of metric rows; ``None`` to ignore it. If both are numbers of iterations, a longer interval is
            rounded to a multiple of ``rows``, so that evaluations and checkpoints coincide with rows.
    """
    if timesteps <= 0:
        return None
    if not steps_per_iteration:
        return EverySteps(min(max(1, round(timesteps)) * num_seeds, _NEVER))
    iterations = max(1, round(timesteps / steps_per_iteration))
    unit = rows.number if isinstance(rows, EveryIterations) else 1
    return EveryIterations(min(iterations if iterations < unit else unit * round(iterations / unit), _NEVER))
