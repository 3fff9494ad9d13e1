"""Tables of learning results: published figures, regression figures and stale results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.learning.curves import file_names
from benchmarks.learning.judgment import NOT_MET, WORSE, Judgment, environment_steps, judge
from benchmarks.learning.published import Published
from benchmarks.learning.staleness import OLD, staleness
from benchmarks.learning.statistics import Summary
from benchmarks.learning.task import LearningTask, Point
from benchmarks.markdown import table

PUBLISHED_COLUMNS = ["task", "published", "required", "mean", "IQM", "P(ours > theirs)", "seeds", "result"]
OUR_COLUMNS = ["task", "required", "mean", "IQM", "seeds", "result"]
STALE_COLUMNS = ["task", "recorded", "reason", "last evaluation"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A task with its result.

    Attributes:
        task: the task.
        result: the recorded result, or ``None``.
        stale: the reason why the result does not count; ``None`` if it counts.
        judgment: the judgment of a result that counts; ``None`` otherwise.
        pictured: the page of the algorithm has a picture of the learning curve.
    """

    task: LearningTask
    result: Mapping[str, Any] | None
    stale: str | None
    judgment: Judgment | None
    pictured: bool = False


def row_of(task: LearningTask, result: Mapping[str, Any] | None) -> Row:
    """Return the row of a task. Only a result whose settings equal the task is judged."""
    stale = None if result is None else staleness(task, result)
    judgment = None if result is None or stale else judge(task, result)
    return Row(task, result, stale, judgment)


def rows_of(tasks: Iterable[LearningTask], results: Mapping[str, Any]) -> list[Row]:
    """Return the row of every task, those with a result that counts first."""
    rows = [row_of(task, results.get(task.name)) for task in tasks]
    return sorted(rows, key=lambda row: (row.judgment is None, row.result is None))


def with_pictures(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a page, with those marked whose learning curves are drawn.

    These are all results that count. A page without any shows one stale result: preferably with a published figure,
    the current overrides, and many seeds.
    """
    drawn = [row for row in rows if row.judgment is not None and row.result is not None and row.result["curve"]]
    if not drawn:
        stale = [row for row in rows if row.result is not None and row.result["curve"]]
        drawn = sorted(stale, key=_preference)[-1:]
    return [dataclasses.replace(row, pictured=row in drawn) for row in rows]


def _preference(row: Row) -> tuple[bool, bool, int]:
    assert row.result is not None
    return row.task.published is not None, row.stale == OLD, len(row.result["seeds"])


Title = Callable[[LearningTask], str]


def published_table(rows: Iterable[Row], title: Title, pictures: str) -> str:
    """Return the table of tasks with a published figure, linked to the folder ``pictures``; empty without tasks."""
    return _table(PUBLISHED_COLUMNS, [_published_cells(row, title, pictures) for row in rows if row.task.published])


def regression_table(rows: Iterable[Row], title: Title, pictures: str) -> str:
    """Return the table of tasks with a threshold of our own; empty without such tasks."""
    return _table(OUR_COLUMNS, [_our_cells(row, title, pictures) for row in rows if not row.task.published])


def stale_table(rows: Iterable[Row], title: Title, pictures: str) -> str:
    """Return the table of results that do not count, with the reasons; empty without such results."""
    return _table(STALE_COLUMNS, [_stale_cells(row, title, pictures) for row in rows if row.stale])


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return table(columns, cells) if cells else ""


def _published_cells(row: Row, title: Title, pictures: str) -> list[str]:
    theirs = row.task.published
    assert theirs is not None
    head = [title(row.task), show_published(theirs), row.task.limit]
    judgment = row.judgment
    if judgment is None:
        return [*head, "-", "-", "-", "-", _status(row)]
    compared = judgment.improvement
    probability = "-" if compared is None else f"{compared.probability:.2f} [{compared.low:.2f}, {compared.high:.2f}]"
    reach = "" if theirs.values is None else f" reach {show_number(theirs.bar)}"
    return [*head, *_mean_cells(row), probability, _seeds(row) + reach, _status(row) + _curve(row, pictures)]


def _our_cells(row: Row, title: Title, pictures: str) -> list[str]:
    head = [title(row.task), row.task.limit]
    if row.judgment is None:
        return [*head, "-", "-", "-", _status(row)]
    return [*head, *_mean_cells(row), _seeds(row), _status(row) + _curve(row, pictures)]


def _stale_cells(row: Row, title: Title, pictures: str) -> list[str]:
    result = row.result
    assert result is not None
    assert row.stale is not None
    curve = result["curve"]
    last = f"{show_number(curve[-1]['mean'])} at {curve[-1]['timesteps']:,} steps" if curve else "-"
    return [title(row.task), result.get("date", "-"), row.stale, last + _curve(row, pictures)]


def _curve(row: Row, pictures: str) -> str:
    return f", [curve]({pictures}/{file_names(row.task)[0]})" if row.pictured else ""


def _mean_cells(row: Row) -> list[str]:
    """Return mean with interval and steps, and the interquartile mean, of the evaluation that is judged."""
    judgment = row.judgment
    assert judgment is not None
    if judgment.summary is None or judgment.point is None:
        return ["no evaluation within the limit", "-"]
    return [f"{show_mean(judgment.summary)} at {_steps(row, judgment.point):,}", show_number(judgment.summary.iqm)]


def _steps(row: Row, point: Point) -> int:
    """Return environment steps of an evaluation for a task with a published figure, otherwise steps of the agent."""
    assert row.result is not None
    return environment_steps(point, row.result) if row.task.published else point["timesteps"]


def _seeds(row: Row) -> str:
    assert row.result is not None
    assert row.judgment is not None
    return f"{row.judgment.num_met} of {len(row.result['seeds'])}"


def _status(row: Row) -> str:
    if row.result is None:
        return "not recorded"
    if row.judgment is None:
        return "stale"
    verdict = row.judgment.verdict
    text = f"**{verdict}**" if verdict in (NOT_MET, WORSE) else verdict
    return text + (", with fewer steps" if row.judgment.shorter else "")


def show_number(value: float, scale: float | None = None) -> str:
    """Return a score as text: one decimal, or three if the score, or ``scale`` in its place, is at most 1."""
    return f"{value:,.{3 if abs(value if scale is None else scale) <= 1.0 else 1}f}"


def show_mean(summary: Summary) -> str:
    """Return the mean of several seeds with its interval as text."""
    if summary.interval is None:
        return show_number(summary.mean)
    low, high = (show_number(end, summary.mean) for end in summary.interval)
    return f"{show_number(summary.mean)} [{low}, {high}]"


def show_published(theirs: Published) -> str:
    """Return a published figure with its spread, steps and source as Markdown."""
    spread = "" if theirs.deviation is None else f" ± {show_number(theirs.deviation, theirs.center)}"
    return (
        f"{show_number(theirs.center)}{spread} {show_spread(theirs)} after {theirs.timesteps:,} environment steps: "
        f"[{theirs.by}]({theirs.source}), {theirs.place}"
    )


def show_spread(theirs: Published) -> str:
    """Return the sample of a published mean and deviation as text."""
    each = ", each public" if theirs.values is not None else ""
    return {
        "seeds": f"(deviation over {theirs.num_seeds} seeds{each})",
        "episodes": "(deviation over the episodes of one training run)",
        "one_run": "(one training run)",
        "none": f"(mean of {theirs.num_seeds} seeds, no deviation published)",
    }[theirs.spread_over]
