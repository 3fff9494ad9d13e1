"""Status of a run, and formatting of its numbers for the screen."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable

from evorl.ops.terminal_text import counted
from evorl.runs.recorder import Row, RunPlan

EVALUATION = "eval/episode_return"
TRAINING = "train/episode_return"
NO_LOSS = {TRAINING, "train/episode_length", "train/episodes", "train/updates"}
MAX_DRAWN = 1e300  # charts show smaller magnitudes only: differences of larger ones may overflow
_BARS = "▁▂▃▄▅▆▇█"


def best_evaluation(steps: Iterable[float], values: Iterable[float]) -> float:
    """Return the largest finite value of N evaluations at steps above 0; NaN if no such value exists.

    The evaluation at step 0 is that of the untrained policy.
    """
    pairs = zip(steps, values, strict=True)
    return float(max((value for step, value in pairs if step > 0 and math.isfinite(value)), default=math.nan))


class RunStatus:
    """Progress, speed, time left and the latest metrics of a run.

    Attributes:
        plan: total steps and title of the run.
        timesteps: environment steps taken, per seed.
        steps_per_second: current speed, summed over all seeds.
        latest: the latest value of every metric.
        evaluations: all evaluation returns since the start or resume.
        best: the largest finite value in ``evaluations`` after step 0; NaN if no such value exists.
    """

    def __init__(self, plan: RunPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.timesteps = plan.first_timesteps
        self.steps_per_second = 0.0
        self.latest: dict[str, float | int] = {}
        self.evaluations: list[float] = []
        self._evaluated_at: list[int] = []
        self._clock = clock
        self._measured_from: tuple[float, int] | None = None  # seconds and timesteps at the first progress report

    def advance(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        """Update the status with a progress report, see ``Recorder.progress``."""
        self.timesteps = timesteps
        self.steps_per_second = steps_per_second
        self.latest.update(latest)
        if self._measured_from is None:
            self._measured_from = (self._clock(), timesteps)

    def take_row(self, row: Row) -> None:
        """Update the status with a row of metrics, see ``Recorder.write``."""
        self.latest.update(row)
        self.timesteps = int(row.get("timesteps", self.timesteps))
        if EVALUATION in row:
            self.evaluations.append(float(row[EVALUATION]))
            self._evaluated_at.append(self.timesteps)

    @property
    def best(self) -> float:
        """The best evaluation return; see ``best_evaluation``."""
        return best_evaluation(self._evaluated_at, self.evaluations)

    @property
    def fraction(self) -> float:
        """Completed fraction of the run, from 0 to 1."""
        return min(1.0, self.timesteps / self.plan.total_timesteps) if self.plan.total_timesteps else 1.0

    @property
    def seconds_left(self) -> float:
        """Estimated seconds left at the average speed so far, including evaluations; NaN while unknown."""
        left = self.plan.total_timesteps - self.timesteps
        if self._measured_from is not None:
            seconds, steps = self._clock() - self._measured_from[0], self.timesteps - self._measured_from[1]
            if seconds >= 1.0 and steps > 0:
                return left * seconds / steps
        pace = self.steps_per_second / getattr(self.plan, "num_seeds", 1)
        return left / pace if pace > 0 and math.isfinite(pace) else math.nan


def describe_metrics(row: Row, num_losses: int = 4, width: int | None = None, side_by_side: str | None = None) -> str:
    """Describe the returns and losses in a row.

    Args:
        row: metrics.
        num_losses: maximum number of losses.
        width: maximum number of characters; parts after the first are dropped to fit. ``None`` for no limit.
        side_by_side: text for the runs that returns are averaged over, see ``RunPlan``; by default the number of seeds.
    """
    parts = []
    if EVALUATION in row:
        parts.append(f"evaluation return {format_return(row, EVALUATION, side_by_side)}")
    if TRAINING in row:
        parts.append(f"training return {format_return(row, TRAINING, side_by_side)}")
    parts += [f"{name} {format_number(value)}" for name, value in losses(row)[:num_losses]]
    while width is not None and len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


def learner_metrics(names: Iterable[str]) -> list[str]:
    """Return the names of the learner's metrics among the columns of rows; losses first."""
    reported = (name for name in names if name.startswith("train/") and name not in NO_LOSS)
    return sorted(reported, key=lambda name: "loss" not in name)


def losses(row: Row) -> list[tuple[str, float]]:
    """Return names, without ``train/``, and values of the learner's metrics in a row; losses first."""
    return [(name.removeprefix("train/"), float(row[name])) for name in learner_metrics(row)]


def format_return(row: Row, name: str, side_by_side: str | None = None) -> str:
    """Format a return and its standard deviation, if any: ``300.0 ± 5.0 over 4 seeds`` (or over ``side_by_side``)."""
    column, num_seeds = spread_column(row, name)
    if column not in row:
        return f"{row[name]:,.1f}"
    over = f" over {side_by_side or counted(num_seeds, 'seed')}" if num_seeds else ""
    return f"{row[name]:,.1f} ± {row[column]:,.1f}{over}"


def spread_column(columns: Iterable[str], name: str) -> tuple[str, int]:
    """Return the column of the standard deviation of ``name``, and the number of seeds; 0 if it is over episodes."""
    num_seeds = sum(column.startswith(f"{name}_seed_") for column in columns)
    return f"{name}_std_over_seeds" if num_seeds else f"{name}_std", num_seeds


def format_number(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Format seconds as ``h:mm:ss``, or ``-:--:--`` if unknown."""
    if not math.isfinite(seconds):
        return "-:--:--"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def sparkline(values: list[float], width: int = 40) -> str:
    """Return a curve of at most ``width`` characters, with blanks for NaN and magnitudes from ``MAX_DRAWN``; or ''."""
    if len(values) > width:  # means of equal parts, so that the whole history remains visible
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    shown = [v for v in values if abs(v) < MAX_DRAWN]
    if not shown:
        return ""
    low, span, top = min(shown), max(shown) - min(shown), len(_BARS) - 1
    bars = (_BARS[round((v - low) / span * top) if span else top // 2] if abs(v) < MAX_DRAWN else " " for v in values)
    return "".join(bars)
