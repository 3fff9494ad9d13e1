"""Results of the tuned settings in ``configs/experiment``: a file that ships with the configs, and a page of the docs.

``configs/experiment/_results.json`` has an entry for each file of tuned settings; the first line of a run shows it. A
result counts for a file if its task has no overrides except for the duration and the intervals of evaluations.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.judgment import environment_steps, scores
from benchmarks.learning.published import Published
from benchmarks.learning.tables import Row, rows_of
from benchmarks.learning.task import TASKS, LearningTask, Point
from benchmarks.markdown import table
from evorl.cli.config_tree import RESULTS_FILE, config_folder, config_names, family_files, settings_file
from evorl.recorders.learning_curve import format_steps

CURRENT, STALE, MISSING = "current", "stale", "not measured"
SAME_STEPS = 0.9  # fraction of the published steps from which a result omits their number
_ORDER = (CURRENT, STALE, MISSING)  # order of the rows of the page
_DURATION = ("agent", "env", "total_timesteps", "eval_interval", "log_interval")

PAGE = """\
<!-- Generated from benchmarks/results by python -m benchmarks.pages; do not edit. -->
# Tuned settings

{counts}

Also called tuned hyperparameters, or a zoo. `agent=` and `env=` [select a file by themselves](command_line.md), and the
first line of a run shows its result:

```text
{example}
```

*Result*: mean and standard deviation over seeds of the last evaluation within the limit of the task, such as the
published number of environment steps; of a stale result, of the last evaluation. The return of a seed is the mean over
20 episodes of the greedy policy. A result is *current* if its training settings equal those composed now. All others
are *stale*: the settings have changed since, or were not stored, so today's settings may give another result.
`python -m benchmarks.learning --all` records stale results again. See the rules in
[Benchmarks](../benchmarks.md#learning).
"""

FAMILIES = """
## Families

These files apply to all other environments of a family, as listed in `configs/experiment/_families.yaml`: files of the
family itself, such as `ppo/_brax`, or files of the same task in another library, such as `ppo/pendulum`. The first line
of a run calls them *settings of similar tasks*. Learning tasks that use them are in the last column;
[Benchmarks](../benchmarks.md#without-tuned-settings) has results of training runs without tuned settings.
"""


def tuned_tasks(folder: Path, tasks: Mapping[str, LearningTask] = TASKS) -> dict[str, list[LearningTask]]:
    """Return the tasks that train with each file of settings, unchanged, by the file's name: ``ppo/pendulum``.

    Args:
        folder: config tree.
        tasks: all tasks.
    """
    by_file: dict[str, list[LearningTask]] = {}
    for task in tasks.values():
        settings = dict(override.split("=", 1) for override in task.overrides if "=" in override)
        if task.solvable and len(settings) == len(task.overrides) and settings.keys() <= set(_DURATION):
            by_file.setdefault(settings_file(f"{task.agent}/{settings['env']}", folder), []).append(task)
    return by_file


def tuned_results(results: Mapping[str, Any], folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the result of every file of tuned settings, by its name; the content of ``_results.json``.

    Args:
        results: recorded results by task.
        folder: config tree; ``None`` for the shipped one.
    """
    folder = folder or config_folder()
    by_file = tuned_tasks(folder)
    entries = {}
    for name in config_names(folder / "experiment"):
        rows = rows_of(by_file.get(name, ()), results)
        entries[name] = describe_result(rows[0] if rows else None)
    return entries


def describe_result(row: Row | None) -> dict[str, Any]:
    """Return the entry of a file of tuned settings.

    Args:
        row: its task with the recorded result; ``None`` without a task.
    """
    if row is None:
        return {"state": MISSING, "summary": "not measured"}
    entry: dict[str, Any] = {"task": row.task.name, "state": MISSING, **_figures(row)}
    theirs = row.task.published
    if theirs is not None:
        entry["published"] = {
            "mean": round(theirs.center, 3),
            **({} if theirs.deviation is None else {"deviation": round(theirs.deviation, 3)}),
            "steps": theirs.timesteps,
            "by": theirs.by,
            "source": theirs.source,
            "place": theirs.place,
        }
    return {**entry, "summary": _summary(entry, theirs)}


def _figures(row: Row) -> dict[str, Any]:
    """Return state and figures of a result; empty without an evaluation."""
    point = _shown_point(row)
    if row.result is None or point is None:
        return {}
    by_seed = scores(point)
    return {
        "state": STALE if row.stale else CURRENT,
        **({} if row.judgment is None else {"verdict": row.judgment.verdict}),
        "metric": row.task.score.partition("/")[2],
        "mean": _rounded(point["mean"]),
        **({"deviation": _rounded(float(np.std(by_seed, ddof=1)))} if len(by_seed) > 1 else {}),
        "seeds": len(row.result["seeds"]),
        "steps": environment_steps(point, row.result),
        "date": row.result["date"],
    }


def _shown_point(row: Row) -> Point | None:
    if row.judgment is not None:
        return row.judgment.point
    return row.result["curve"][-1] if row.result and row.result["curve"] else None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else float(round(value))


def show_score(value: float, scale: float | None = None) -> str:
    """Return a score with about three digits: ``-167``, ``12.3``, ``0.950``; ``scale`` replaces it for rounding."""
    size = abs(value if scale is None else scale)
    return f"{value:,.{0 if size >= 100 else 1 if size > 1 else 3}f}"


def show_result(entry: Mapping[str, Any]) -> str:
    """Return mean, deviation, seeds and steps of an entry as text; empty if it was not measured."""
    if "mean" not in entry:
        return ""
    metric = "" if entry["metric"] == "episode_return" else f"{entry['metric'].replace('_', ' ')} "
    deviation = f" ± {show_score(entry['deviation'], entry['mean'])}" if "deviation" in entry else ""
    seeds = f"over {entry['seeds']} seeds" if entry["seeds"] > 1 else "with 1 seed"
    steps = format_steps(float(f"{entry['steps']:.2g}"))
    return f"{metric}{show_score(entry['mean'])}{deviation} {seeds} after {steps} steps"


def _summary(entry: Mapping[str, Any], theirs: Published | None) -> str:
    """Return the text that the first line of a run shows."""
    text = show_result(entry) or "not measured"
    if entry["state"] == STALE:
        text = f"stale result of {entry['date']}: {text}"
    if theirs is None:
        return text
    same = "steps" in entry and SAME_STEPS <= entry["steps"] / theirs.timesteps <= 1 / SAME_STEPS
    after = "" if same else f" after {format_steps(theirs.timesteps)} steps"
    return f"{text}; published {show_score(theirs.center)}{after}"


def results_text(entries: Mapping[str, Any]) -> str:
    """Return the content of ``_results.json``: one entry per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_results(results: Mapping[str, Any], folder: Path | None = None) -> None:
    """Write ``_results.json`` into a config tree; ``None`` for the shipped one."""
    folder = folder or config_folder()
    (folder / RESULTS_FILE).write_text(results_text(tuned_results(results, folder)), encoding="utf-8")


def tuned_page(results: Mapping[str, Any], homes: Mapping[str, str]) -> str:
    """Return the Markdown text of ``guide/tuned_settings.md``.

    Args:
        results: recorded results by task.
        homes: the file in ``docs/algorithms`` that documents each agent.
    """
    entries = tuned_results(results)
    example = f"Tuned settings: ppo/pendulum ({entries['ppo/pendulum']['summary']})."
    rows = [
        _cells(name, entry, homes)
        for name, entry in sorted(entries.items(), key=lambda item: _ORDER.index(item[1]["state"]))
    ]
    families = table(["settings", "environments", "learning tasks"], _family_rows())
    head = PAGE.format(counts=_counts(entries), example=example)
    return "\n".join([head, table(["settings", "result", "published", "state"], rows), FAMILIES, families])


def _counts(entries: Mapping[str, Any]) -> str:
    """Return the number of files by state as a sentence."""
    states = [entry["state"] for entry in entries.values()]
    published = sum("published" in entry for entry in entries.values())
    text = (
        f"evorl ships settings tuned for {len(entries)} pairs of agent and environment. "
        f"Results that are current: {states.count(CURRENT)}; stale: {states.count(STALE)}; "
        f"not measured: {states.count(MISSING)}. With a published figure: {published}."
    )
    return textwrap.fill(text, 120)


def _cells(name: str, entry: Mapping[str, Any], homes: Mapping[str, str]) -> list[str]:
    task = TASKS.get(entry.get("task", ""))
    agent = next((agent for agent in homes if name.startswith(f"{agent}/")), None)
    link = f"[`{name}`](../algorithms/{homes[agent]}#learning)" if agent else f"`{name}`"
    theirs = _show_reference(task.published) if task and task.published else "-"
    state = f"stale, of {entry['date']}" if entry["state"] == STALE else entry["state"]
    verdict = f": {entry['verdict']}" if "verdict" in entry else ""
    return [link, show_result(entry) or "-", theirs, f"{state}{verdict}"]


def _show_reference(theirs: Published) -> str:
    steps = format_steps(theirs.timesteps)
    return f"{show_score(theirs.center)} after {steps} steps: [{theirs.by}]({theirs.source}), {theirs.place}"


def _family_rows() -> Iterator[Sequence[str]]:
    folder = config_folder()
    by_file = tuned_tasks(folder)
    patterns: dict[str, list[str]] = {}
    for name, experiments in family_files(folder):
        patterns.setdefault(name, []).append(experiments.removeprefix(f"{name.rpartition('/')[0]}/"))
    for name, environments in sorted(patterns.items()):
        tasks = by_file.get(name, ()) if "/_" in name else ()  # the tasks of other files are of another library
        shown = ", ".join(f"`{pattern}`" for pattern in environments)
        yield f"`{name}`", shown, ", ".join(f"`{task.name}`" for task in tasks) or "-"
