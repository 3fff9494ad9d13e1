"""Published figures of learning tasks, and the bar that each of them sets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

SPREADS = ("seeds", "episodes", "one_run", "none")


@dataclasses.dataclass(frozen=True)
class Published:
    """Published return (or score) of the same algorithm in the same environment.

    Attributes:
        by: its authors.
        source: URL of the file or page.
        place: line, table or rows of the source.
        environment: name and version of their environment.
        timesteps: environment steps of their training; an action that is repeated twice counts as two steps.
        differences: other differences between their training and ours: hyperparameters, environment, evaluation.
        spread_over: ``seeds``: ``spread`` or ``values`` are over training runs; ``episodes``: ``spread`` is over the
            evaluation episodes of one training run; ``one_run``: one training run; ``none``: the mean of several
            training runs without a spread.
        num_seeds: number of training runs.
        mean: the published mean; omitted if there are ``values``.
        spread: the published standard deviation over ``spread_over``.
        values: the result of each training run, if these are public.
        settings: their settings that are most likely to matter, and ours; empty if none are known to differ.

    Raises:
        ValueError: ``spread_over`` is unknown, or does not agree with ``num_seeds``, ``mean``, ``spread`` and
            ``values``.
    """

    by: str
    source: str
    place: str
    environment: str
    timesteps: int
    differences: str
    spread_over: str
    num_seeds: int
    mean: float | None = None
    spread: float | None = None
    values: Sequence[float] | None = None
    settings: str = ""

    def __post_init__(self) -> None:
        if self.spread_over not in SPREADS:
            raise ValueError(f"spread_over is {self.spread_over!r}, expected one of {', '.join(SPREADS)}")
        if (self.mean is None) == (self.values is None):
            raise ValueError("a published figure has either a mean or values of each seed: set exactly one")
        if self.values is not None and (len(self.values) != self.num_seeds or self.spread_over != "seeds"):
            raise ValueError(f"{len(self.values)} values require num_seeds={len(self.values)} and spread_over=seeds")
        has_spread = self.spread is not None or self.values is not None
        if has_spread != (self.spread_over in ("seeds", "episodes")):
            raise ValueError(f"spread_over={self.spread_over} does not agree with spread={self.spread}")
        if (self.num_seeds == 1) != (self.spread_over in ("episodes", "one_run")):
            raise ValueError(f"spread_over={self.spread_over} does not agree with num_seeds={self.num_seeds}")

    @property
    def center(self) -> float:
        """The published mean, or the mean of the published values."""
        return float(np.mean(self.values)) if self.values is not None else float(self.mean or 0.0)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over ``spread_over``, of ``values`` with ``n - 1`` degrees of freedom."""
        return float(np.std(self.values, ddof=1)) if self.values is not None else self.spread

    @property
    def standard_error(self) -> float:
        """The standard error of the mean over seeds; 0 if the deviation over seeds is not public."""
        return (self.deviation or 0.0) / math.sqrt(self.num_seeds) if self.spread_over == "seeds" else 0.0

    @property
    def bar(self) -> float:
        """The mean minus its standard error over seeds; the mean itself for one training run."""
        return self.center - self.standard_error
