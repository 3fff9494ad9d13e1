"""Lists runs as text: filtered, sorted and formatted in columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from evorl.config.names import did_you_mean, listed, no_such
from evorl.ops.terminal_text import aligned, escaped
from evorl.recorders.learning_curve import format_steps
from evorl.reports.recorded_run import RecordedRun
from evorl.reports.summary_table import number
from evorl.runs.files import RunFolderError
from evorl.runs.run_state import STATES

COLUMNS = ("run", "algorithm", "env", "return", "best", "steps", "of", "state", "resume")
_RIGHT = range(3, 7)  # numbers


class Filters(NamedTuple):
    """Filters for runs; ``None`` accepts all.

    Attributes:
        algorithm: algorithm of the run, with or without ``meta/``, case-insensitive.
        env: part of the environment's name, or the name chosen on the command line, case-insensitive.
        state: ``"running"``, ``"stopped"``, ``"finished"`` or ``"failed"``.
    """

    algorithm: str | None = None
    env: str | None = None
    state: str | None = None

    def chosen(self, runs: Iterable[RecordedRun]) -> list[RecordedRun]:
        """Return the runs that pass the filters.

        Raises:
            ValueError: the state is invalid, or no run has that algorithm or environment; the message lists the valid
                ones.
        """
        if self.state is not None and self.state not in STATES:
            raise ValueError(f"{no_such('state', self.state, STATES)}")
        selected = list(runs)
        for name in ("algorithm", "env"):
            requested = getattr(self, name)
            if requested is None or not selected:
                continue
            fitting = [run for run in selected if _fits(run, name, requested.lower())]
            if not fitting:
                present = sorted({getattr(run, name) for run in selected})
                hint = did_you_mean(requested, present)
                raise ValueError(f"no run matches {name}={requested}.{hint} Available: {listed(present)}.")
            selected = fitting
        return [run for run in selected if self.state in (None, run.state.state)]


def _fits(run: RecordedRun, name: str, requested: str) -> bool:
    if name == "algorithm":
        return run.algorithm.lower() in (requested, f"meta/{requested}")
    chosen = str(run.starts[0].get("env", "")) if run.starts else ""
    return requested in run.env.lower() or requested == chosen.lower()


_ORDERS: dict[str, Callable[[RecordedRun], Any]] = {
    "return": lambda run: _low_if_nan(run.mean()),
    "best": lambda run: _low_if_nan(run.best()),
    "steps": lambda run: run.timesteps,
    "newest": lambda run: run.folder.config.stat().st_mtime,
    "run": lambda run: run.name,
    "algorithm": lambda run: run.algorithm,
    "env": lambda run: run.env,
    "state": lambda run: STATES.index(run.state.state),
}
_BY_NUMBER = ("return", "best", "steps", "newest")  # largest first


def readable(runs: Iterable[RecordedRun]) -> tuple[list[RecordedRun], list[str]]:
    """Return the readable runs, and a message for each unreadable one; skip folders with another program's config."""
    selected, notes = [], []
    for run in runs:
        try:
            if run.is_readable():
                selected.append(run)
        except RunFolderError as error:
            notes.append(f"{run.name} is omitted: {error}")
    return selected, notes


def in_order(runs: Iterable[RecordedRun], sort: str) -> list[RecordedRun]:
    """Sort runs by ``return``, ``best``, ``steps`` or ``newest``, largest first; or by run, algorithm, env or state.

    Raises:
        ValueError: the order is unknown.
    """
    if sort not in _ORDERS:
        raise ValueError(no_such("value of sort", sort, _ORDERS))
    by_name = sorted(runs, key=_ORDERS["run"])
    return sorted(by_name, key=_ORDERS[sort], reverse=sort in _BY_NUMBER)


def cells(run: RecordedRun) -> dict[str, str]:
    """Return the cells of a run in the list, by column."""
    total = run.total_timesteps
    return {
        "run": run.name,
        "algorithm": run.algorithm,
        "env": run.env,
        "return": number(run.mean()),
        "best": number(run.best()),
        "steps": format_steps(run.timesteps),
        "of": "-" if total is None else format_steps(total),
        "state": run.state.state,
        "resume": "yes" if run.can_be_resumed else "no",
    }


def as_lines(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the list as lines of text: a heading and one line per run, in aligned columns."""
    shown = [[escaped(cell, lines=True) for cell in cells(run).values()] for run in runs]
    return aligned([COLUMNS, *shown], _RIGHT)


def _low_if_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value
