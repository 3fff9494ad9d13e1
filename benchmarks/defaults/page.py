"""Section of the benchmarks page about training runs without tuned settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.defaults.gain import applied_settings, gain_of
from benchmarks.defaults.task import AGENTS, TASKS
from benchmarks.learning.judgment import environment_steps
from benchmarks.learning.tables import Row, row_of, show_number, show_published
from benchmarks.markdown import table

COLUMNS = ["task", "settings", "random actions", "ours", "published", "share of the gain", "half"]

HEAD = """
## Without tuned settings

Training runs of six agents on tasks for which no settings were tuned: only the agent, the environment and the number of
steps are chosen, and all other settings are the general defaults, or the settings of similar tasks
([families](guide/tuned_settings.md#families)). *Random actions* is the return of `agent=random`, *published* a
figure with tuned settings, often of a longer run and sometimes of another algorithm
(`benchmarks/defaults/tasks.yaml` lists the differences). The *share of the gain* is (ours - random) / (published -
random); *half* is yes if it is at least 0.5. Few seeds were trained: the figures show where the defaults fail, not how
good they are elsewhere. To record the results again:

```bash
python -m benchmarks.defaults dqn_acrobot             # one task; --seeds: number of seeds
python -m benchmarks.defaults --all --minutes 5       # tasks that are missing or stale and take at most 5 minutes
```
"""


def defaults_section(results: Mapping[str, Any]) -> str:
    """Return the Markdown text of the section, with a table for each agent."""
    rows = [row_of(task, results.get(task.name)) for task in TASKS.values()]
    tables = (_agent_table(agent, [row for row in rows if row.task.agent == agent]) for agent in AGENTS)
    return "\n".join([HEAD, _counts(rows), *tables])


def _counts(rows: Sequence[Row]) -> str:
    """Return the number of tasks by state as a sentence."""
    gains = [gain for gain in map(gain_of, rows) if gain is not None]
    text = (
        f"Tasks: {len(rows)}; with a result that counts: {len(gains)}; half of the gain reached: "
        f"{sum(gain.is_half for gain in gains)}; stale: {sum(row.stale is not None for row in rows)}; "
        f"not recorded: {sum(row.result is None for row in rows)}."
    )
    return textwrap.fill(text, 120) + "\n"


def _agent_table(agent: str, rows: Sequence[Row]) -> str:
    notes = "".join(f"\n`{name}`: {notes}\n" for name, notes in _notes(rows))
    return f"### Without tuned settings: {agent}\n\n{table(COLUMNS, map(_cells, rows))}{notes}"


def _notes(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.result is not None and row.result.get("notes"):
            yield row.task.name, row.result["notes"]


def missing(row: Row) -> str:
    """Return the reason why a row has no gain."""
    if row.result is None:
        return "not recorded"
    return "no evaluation within the published steps" if row.stale is None else f"stale: {row.stale}"


def _cells(row: Row) -> list[str]:
    theirs, result, judgment, gain = row.task.published, row.result, row.judgment, gain_of(row)
    assert theirs is not None
    settings = applied_settings(row.task)
    origin = "general defaults" if settings is None else f"`{settings}`"
    head = [f"`{row.task.name}`: {row.task.title}", origin]
    if gain is None or result is None or judgment is None or judgment.point is None:
        return [*head, "-", "-", show_published(theirs), "-", missing(row)]
    seeds = len(result["seeds"])
    ours = (
        f"{show_number(gain.ours, theirs.center)} after {environment_steps(judgment.point, result):,} environment "
        f"steps ({seeds} seed{'s' * (seeds != 1)})"
    )
    return [
        *head,
        show_number(gain.random, theirs.center),
        ours,
        show_published(theirs),
        f"{gain.share:.2f}",
        "yes" if gain.is_half else "**no**",
    ]
