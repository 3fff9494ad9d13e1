"""Section of the benchmarks page about trainings without tuned settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.defaults.gain import GainRow, applied_settings, gain_rows
from benchmarks.defaults.task import AGENTS, TASKS
from benchmarks.learning.judgment import environment_steps
from benchmarks.learning.tables import show_number, show_published
from benchmarks.markdown import table

COLUMNS = ["task", "settings", "random actions", "ours", "published", "share of the gain", "half"]

HEAD = """
## Without tuned settings

Trainings of six agents on tasks for which no settings were tuned: a user chooses the agent, the environment and the
number of steps, and all other settings are the general defaults, or the settings of similar tasks
([families](guide/tuned_settings.md#families)). *Random actions* is the return of `agent=random`, *published* a
figure with tuned settings, often of a longer training and sometimes of another algorithm
(`benchmarks/defaults/tasks.yaml` lists the differences). The *share of the gain* is (ours - random) / (published -
random); *half* is yes if it is at least 0.5. Few seeds were trained: the figures show where the defaults fail, not by
how much they are better elsewhere. To record them again:

```bash
python -m benchmarks.defaults dqn_acrobot             # one of them; --seeds: number of seeds
python -m benchmarks.defaults --all --minutes 5       # all that are missing or stale and take at most 5 minutes
```
"""


def defaults_section(results: Mapping[str, Any]) -> str:
    """Return the Markdown text of the section, with a table for each agent."""
    rows = gain_rows(TASKS.values(), results)
    tables = (_agent_table(agent, [row for row in rows if row.task.agent == agent]) for agent in AGENTS)
    return "\n".join([HEAD, _counts(rows), *tables])


def _counts(rows: Sequence[GainRow]) -> str:
    """Return the number of tasks by state as a sentence."""
    gains = [row.gain for row in rows if row.gain is not None]
    text = (
        f"Tasks: {len(rows)}; with a result that counts: {len(gains)}; half of the gain reached: "
        f"{sum(gain.is_half for gain in gains)}; stale: {sum(row.stale is not None for row in rows)}; "
        f"not recorded: {sum(row.result is None for row in rows)}."
    )
    return textwrap.fill(text, 120) + "\n"


def _agent_table(agent: str, rows: Sequence[GainRow]) -> str:
    notes = "".join(f"\n`{name}`: {notes}\n" for name, notes in _notes(rows))
    return f"### Without tuned settings: {agent}\n\n{table(COLUMNS, map(_cells, rows))}{notes}"


def _notes(rows: Sequence[GainRow]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.result is not None and row.result.get("notes"):
            yield row.task.name, row.result["notes"]


def _cells(row: GainRow) -> list[str]:
    theirs = row.task.published
    assert theirs is not None
    settings = applied_settings(row.task)
    origin = "general defaults" if settings is None else f"`{settings}`"
    head = [f"`{row.task.name}`: {row.task.title}", origin]
    if row.gain is None or row.point is None or row.result is None:
        return [
            *head,
            "-",
            "-",
            show_published(theirs),
            "-",
            "not recorded" if row.stale is None else f"stale: {row.stale}",
        ]
    seeds = len(row.result["seeds"])
    ours = (
        f"{show_number(row.gain.ours, theirs.center)} after {environment_steps(row.point, row.result):,} environment "
        f"steps ({seeds} seed{'s' * (seeds != 1)})"
    )
    return [
        *head,
        show_number(row.gain.random, theirs.center),
        ours,
        show_published(theirs),
        f"{row.gain.share:.2f}",
        "yes" if row.gain.is_half else "**no**",
    ]
