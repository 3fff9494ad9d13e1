"""When rows of metrics, evaluations and checkpoints are due: at iterations that follow from the training alone.

Intervals are environment steps. Iterations that all take as many are counted; where they differ, due is what comes with
the iteration that completes another interval.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np


class Interval(Protocol):
    """From one time that something is due to the next."""

    def is_due(self, iterations: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        """After which of N iterations, bool ``[N]``.

        Args:
            iterations: how many there had been before the first of them and after each, ``[N + 1]``.
            timesteps: the environment steps by then.
        """
        ...

    def until_due(self, iterations: int, timesteps: int, most: int) -> int:
        """So many iterations, 1 or more, of which none but the last can be followed by what is due.

        Args:
            iterations: how many there have been.
            timesteps: environment steps by now.
            most: environment steps of an iteration, at most.
        """
        ...


@dataclasses.dataclass(frozen=True)
class EveryIterations:
    """Due after each multiple of a number of iterations."""

    number: int

    def is_due(self, iterations: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        return iterations[1:] % self.number == 0

    def until_due(self, iterations: int, timesteps: int, most: int) -> int:
        """See ``Interval.until_due``: the very number."""
        return self.number - iterations % self.number


@dataclasses.dataclass(frozen=True)
class EverySteps:
    """Due after each iteration in which a multiple of a number of environment steps is reached."""

    number: int

    def is_due(self, iterations: np.ndarray, timesteps: np.ndarray) -> np.ndarray:
        reached = timesteps // self.number
        return reached[1:] > reached[:-1]

    def until_due(self, iterations: int, timesteps: int, most: int) -> int:
        return math.ceil((self.number - timesteps % self.number) / most)


def every(
    timesteps: float, steps_per_iteration: int, num_seeds: int = 1, rows: Interval | None = None
) -> Interval | None:
    """An interval as a workflow's settings say it; ``None`` for never.

    Args:
        timesteps: environment steps of each seed; 0 for never.
        steps_per_iteration: of each seed; 0 where iterations differ.
        num_seeds: whose steps are counted together.
        rows: those of metrics. Where iterations are counted, a longer interval is a multiple of it, so that evaluations
            and checkpoints fall on rows.
    """
    if timesteps <= 0:
        return None
    if not steps_per_iteration:
        return EverySteps(max(1, round(timesteps)) * num_seeds)
    iterations = max(1, round(timesteps / steps_per_iteration))
    unit = rows.number if isinstance(rows, EveryIterations) else 1
    return EveryIterations(iterations if iterations < unit else unit * round(iterations / unit))
