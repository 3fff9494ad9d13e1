"""Progress as plain lines, for logs and pipes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TextIO

from evorl.recorders.run_status import RunStatus, describe_metrics, format_duration
from evorl.recorders.screen import print_line
from evorl.runs.recorder import Recorder, Row, RunPlan

SECONDS_BETWEEN_LINES = 2.0
LONGEST_SILENCE = 60.0
FRACTION_BETWEEN_LINES = 0.05
WIDTH = 80  # default width of a terminal; logs are read there too
_INDENT = " " * 6  # aligned with the steps, which follow the percentage


class PlainLines(Recorder):
    """Prints every message and evaluation, and the progress every 5 % of the run (at least 2 s apart) or 60 seconds.

    Each progress or evaluation is a line, followed by a line with the metrics that fit; ``metrics.csv`` has all.

    Args:
        stream: output stream; ``None`` for standard output.
        clock: function that returns a time in seconds; tests replace it.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._status: RunStatus | None = None
        self._last_time = -math.inf
        self._last_fraction = -math.inf
        self._evaluated_at: int | None = None

    def start(self, plan: RunPlan) -> None:
        self._status = RunStatus(plan, self._clock)
        self._last_time, self._last_fraction = self._clock(), self._status.fraction
        start = f" from {plan.first_timesteps:,}" if plan.first_timesteps else ""
        self.message(f"{plan.name}: {plan.total_timesteps:,} environment steps{start}")

    def write(self, row: Row) -> None:
        if self._status is None:
            return
        self._status.take_row(row)
        if any(name.startswith("eval/") for name in row):
            self._evaluated_at = self._status.timesteps
            self._lines(row)

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        if self._status is None:
            return
        self._status.advance(timesteps, steps_per_second, latest)
        silence = self._clock() - self._last_time
        is_due = self._status.fraction - self._last_fraction >= FRACTION_BETWEEN_LINES or silence >= LONGEST_SILENCE
        if is_due and silence >= SECONDS_BETWEEN_LINES and timesteps != self._evaluated_at:
            fresh = {name: value for name, value in self._status.latest.items() if not name.startswith("eval/")}
            self._lines(fresh)

    def message(self, text: str) -> None:
        print_line(text.rstrip(), self._stream)

    def _lines(self, metrics: Row) -> None:
        assert self._status is not None, "start() makes the status"
        status = self._status
        total = f"{status.plan.total_timesteps:,}"
        speed = f"  {status.steps_per_second:,.0f} steps/s" if status.steps_per_second else ""
        left = f"  {format_duration(status.seconds_left)} left" if status.fraction < 1 else ""
        self.message(f"{status.fraction:4.0%}  {status.timesteps:>{len(total)},} of {total}{speed}{left}")
        if below := describe_metrics(metrics, width=WIDTH - len(_INDENT), side_by_side=status.plan.side_by_side):
            self.message(_INDENT + below)
        self._last_time, self._last_fraction = self._clock(), status.fraction
