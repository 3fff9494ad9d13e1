"""What is learned, as the documentation tells it: an overview, and a table in the page of each algorithm.

A page of ``docs/algorithms`` has its table between two comments, ``<!-- learning -->`` and
``<!-- end of learning -->``. It is of the agents whose settings the page tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning_tasks import TASKS, LearningTask
from benchmarks.markdown import provenance, show_versions, table, verdict

_PLACE = re.compile(r"(<!-- learning -->\n).*?(<!-- end of learning -->)", re.DOTALL)
_SETTINGS = re.compile(r"<!-- settings: configs/agent/([\w/]+)\.yaml -->")

MOST_STEPS = 1.5  # what is asked: ours to theirs

LEARNING = f"""
## Learning

Trainings by the shipped configs. A return is the mean over complete evaluation episodes of all seeds; ± is the standard
deviation over seeds, or over episodes where there is one seed. Seconds count from the start of the training, set-up and
compilation (without a cache) and evaluations included; several seeds train side by side in one program.

*Ours / theirs* are the steps until our first evaluation that reaches the threshold, divided by the steps of a training
that others publish for the same algorithm and an environment of the same name; asked is no more than {MOST_STEPS:g}.
Theirs is how long they trained, not when a threshold was passed, which is seldom published. The return after it stands
beside it, with its source, in the page of the algorithm; the ± of RL Baselines3 Zoo is over the episodes of one seed.
There are the seconds, too; all evaluations are in `docs/results/learning.json`.
"""

INTRODUCTION = """
Trainings by the shipped configs, `python -m benchmarks.learning`. How they are measured, and what the published numbers
are, is told in [Benchmarks](../benchmarks.md#learning).
"""


def agents_of(page: str) -> list[str]:
    """The agents whose settings the text of a page tells."""
    return _SETTINGS.findall(page)


def with_learning(page: str, results: Mapping[str, Any]) -> str:
    """The text of an algorithm's page with the table that follows from the results."""
    agents = agents_of(page)
    return _PLACE.sub(lambda place: f"{place[1]}{learning_section(agents, results)}\n{place[2]}", page)


def write_algorithm_pages(docs: Path, results: Mapping[str, Any]) -> None:
    """Renew the tables in all pages of ``docs/algorithms``."""
    for path in sorted((docs / "algorithms").glob("*.md")):
        path.write_text(with_learning(path.read_text(encoding="utf-8"), results), encoding="utf-8")


def learning_summary(results: Mapping[str, Any], docs: Path) -> str:
    """A row for every task; those that were not recorded are told too."""
    homes = {agent: path.name for path in (docs / "algorithms").glob("*.md") for agent in agents_of(path.read_text())}
    rows = []
    for name, task in TASKS.items():
        title = f"[{task.title}](algorithms/{homes[task.agent]}#learning)" if task.agent in homes else task.title
        if name not in results:
            rows.append([title, *["-"] * 4, task.limit, "not recorded"])
            continue
        result = results[name]
        reached = result["reached"]
        when = f"{reached['timesteps']:,} steps, {_duration(reached['seconds'])}" if reached else "never"
        seeds, last = str(len(result["seeds"])), _return(result["last"])
        rows.append(
            [title + _backend(result), seeds, when, last, _ratio(task, result), result["limit"], verdict(result["met"])]
        )
    return table(["task", "seeds", "reached after", "last", "ours / theirs", "asked", ""], rows)


def learning_section(agents: Sequence[str], results: Mapping[str, Any]) -> str:
    """The tasks of some agents: what was reached when, what others publish, and with what it was measured."""
    tasks = {name: task for name, task in TASKS.items() if task.agent in agents}
    recorded = {name: results[name] for name in tasks if name in results}
    columns = ["task", "seeds", "first over the threshold", "last", "seconds", "published", "ours / theirs"]
    rows = (_row(task, results.get(name)) for name, task in tasks.items())
    notes = (f"`{name}`: {result['notes']}\n" for name, result in recorded.items() if result.get("notes"))
    return "\n".join([INTRODUCTION, table(columns, rows), *notes, *_provenances(recorded)])


def _row(task: LearningTask, result: Mapping[str, Any] | None) -> list[str]:
    published = _published(task)
    name = f"`{task.name}`: {task.title}"
    if result is None:
        return [f"{name}, {task.limit}", "-", "not recorded", "-", "-", published, "-"]
    reached = result["reached"]
    first = f"{_return(reached)} at {reached['timesteps']:,}" if reached else "never"
    return [
        f"{name}{_backend(result)}, {result['limit']}",
        str(len(result["seeds"])),
        first if result["met"] else f"{first}, {verdict(False)}",
        f"{_return(result['last'])} at {result['timesteps']:,}",
        f"{result['seconds']:.0f}",
        published,
        _ratio(task, result),
    ]


def _published(task: LearningTask) -> str:
    theirs = task.published
    if theirs is None:
        return "none found"
    what = f"{theirs.timesteps:,} steps of training"
    what = what if theirs.mean is None else f"{theirs.mean:,.1f} ± {theirs.spread:,.1f} after {what}"
    return f"{what}: [{theirs.by}]({theirs.source})"


def _ratio(task: LearningTask, result: Mapping[str, Any]) -> str:
    if task.published is None or not result["reached"]:
        return "-"
    ratio = result["reached"]["timesteps"] / task.published.timesteps
    return f"{ratio:.2f}" if ratio <= MOST_STEPS else f"{ratio:.2f}, {verdict(False)}"


def _return(point: Mapping[str, Any] | None) -> str:
    if not point:
        return "-"
    spread = "" if point["spread"] is None else f" ± {point['spread']:,.1f}"
    return f"{point['mean']:,.1f}{spread}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _backend(result: Mapping[str, Any]) -> str:
    return f", {result['backend']}" if result.get("backend") else ""


def _provenances(results: Mapping[str, Any]) -> Iterable[str]:
    """Date, machine and versions, each set of them once with the tasks that had it."""
    by_origin: dict[str, list[str]] = {}
    for name, result in results.items():
        by_origin.setdefault(json.dumps([result.get(x) for x in ("date", "machine", "versions")]), []).append(name)
    for names in by_origin.values():
        first = results[names[0]]
        yield provenance(first, show_versions(first["versions"]), f"`python -m benchmarks.learning {' '.join(names)}`")
