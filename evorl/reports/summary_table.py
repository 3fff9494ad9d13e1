"""The summary table of a report: score, interval, speed and status of each group, for the page and as CSV."""

from __future__ import annotations

import collections
import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evorl.recorders.learning_curve import format_steps
from evorl.recorders.run_status import format_duration
from evorl.reports.comparison import Group

COLUMNS = (
    "env", "group", "runs", "seeds", "iqm", "low", "high", "mean", "best", "steps", "steps_per_second", "seconds",
    "state",
)  # fmt: skip
HEADING = (
    "environment", "group", "runs", "seeds", "IQM", "95 % interval", "mean", "best", "steps", "steps/s", "time", "state"
)  # fmt: skip


def summary_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a row for each group: a dict with the keys ``COLUMNS`` and ``None`` for unknown values.

    ``iqm``, ``low``, ``high`` and ``mean`` are over the last values of the seeds. ``best`` is the best value of any run
    (the mean over its seeds), and ``steps`` the largest number of steps per seed of any run. ``steps_per_second`` is
    the median and ``seconds`` the sum over the runs.
    """
    rows = []
    for group in groups:
        low, high = group.interval or (None, None)
        speeds = [run.steps_per_second for run in group.runs if run.steps_per_second is not None]
        seconds = [run.seconds for run in group.runs if run.seconds is not None]
        states = collections.Counter(run.state.state for run in group.runs)
        values = (
            group.env, group.label, len(group.runs), len(group.scores), group.center, low, high,
            float(group.scores.mean()), _largest(run.best(group.metric) for run in group.runs),
            max(run.timesteps for run in group.runs), float(np.median(speeds)) if speeds else None,
            sum(seconds) if seconds else None,
            ", ".join(state if len(states) == 1 else f"{number} {state}" for state, number in states.items()),
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _largest(values: Iterable[float]) -> float | None:
    return max((value for value in values if not math.isnan(value)), default=None)


def as_csv(groups: Sequence[Group]) -> str:
    """Return the table as CSV, with floats in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row.values() for row in summary_rows(groups))
    return text.getvalue()


def as_cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row as shown on the page, in the order of ``HEADING``."""
    interval = "-" if row["low"] is None else f"[{number(row['low'])}, {number(row['high'])}]"
    speed = "-" if row["steps_per_second"] is None else format_steps(float(f"{row['steps_per_second']:.3g}"))
    return [
        row["env"], row["group"], str(row["runs"]), str(row["seeds"]), number(row["iqm"]), interval,
        number(row["mean"]), number(row["best"]), format_steps(row["steps"]), speed,
        "-" if row["seconds"] is None else format_duration(row["seconds"]), row["state"],
    ]  # fmt: skip


def number(value: float | None) -> str:
    """Format a number: one decimal for 0 and from 10 on, else three significant digits; ``-`` for NaN and ``None``."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.1f}" if abs(value) >= 10 or value == 0 else f"{value:.3g}"
