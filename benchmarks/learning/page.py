"""Documentation of learning performance: an overview, and the tables in the page of each algorithm.

A page of ``docs/algorithms`` has its tables between two comments, ``<!-- learning -->`` and
``<!-- end of learning -->``. They cover the agents whose settings the page documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.statistics import summarize
from benchmarks.learning.task import TASKS, Judgment, LearningTask, Point, Published
from benchmarks.markdown import provenance, show_versions, table, verdict

_PLACE = re.compile(r"(<!-- learning -->\n).*?(<!-- end of learning -->)", re.DOTALL)
_SETTINGS = re.compile(r"<!-- settings: configs/agent/([\w/]+)\.yaml -->")

LEARNING = """
## Learning

Trainings with the shipped configs, several seeds in parallel in one program. A return is the mean over complete
evaluation episodes (20 for each seed) and over the seeds. Square brackets contain the 95 % bootstrap interval of that
mean over at least 5 seeds (10,000 resamples), or from 10 seeds on the interquartile mean (IQM) with its interval. For
fewer seeds, parentheses contain the minimum and maximum; for a single seed, ± is the standard deviation over its
episodes. Curves are in `benchmarks/results/learning`, one line per evaluation. Times are omitted, since they depend on
the load of the machine.

**Published figures.** Published results for the same algorithm and an environment of the same name are returns after a
whole training. The requirement is the lower end of the published band, mean minus spread, at the published number of
steps: the last evaluation up to this step counts. *Reached at* is the first evaluation that meets the requirement. The
spread of RL Baselines3 Zoo is the standard deviation over 150,000 steps of evaluation episodes of one training; if no
spread is published, the requirement is the figure itself.
"""

OURS = """
**No published figure.** For these tasks no figure was found for the same algorithm and environment (rejax, MinAtar and
the papers publish settings, lengths of training or plots; figures for MuJoCo's Hopper and Swimmer use other physics
than brax). They have our own threshold instead: at least one evaluation within the limit must reach it.
"""

INTRODUCTION = """
Trainings with the shipped configs, `python -m benchmarks.learning`. The measurement and the published figures are
described in [Benchmarks](../benchmarks.md#learning).
"""
PUBLISHED_COLUMNS = ["task", "seeds", "published", "required", "evorl", "", "reached at"]
OUR_COLUMNS = ["task", "seeds", "required", "reached at", "last", ""]


def agents_of(page: str) -> list[str]:
    """Return the agents whose settings a page documents."""
    return _SETTINGS.findall(page)


def with_learning(page: str, results: Mapping[str, Any]) -> str:
    """Return the text of an algorithm page with its tables generated from the results."""
    agents = agents_of(page)
    return _PLACE.sub(lambda place: f"{place[1]}{learning_section(agents, results)}\n{place[2]}", page)


def write_algorithm_pages(docs: Path, results: Mapping[str, Any]) -> None:
    """Regenerate the tables in all pages of ``docs/algorithms``."""
    for path in sorted((docs / "algorithms").glob("*.md")):
        path.write_text(with_learning(path.read_text(encoding="utf-8"), results), encoding="utf-8")


def learning_summary(results: Mapping[str, Any], docs: Path) -> str:
    """Return both tables, with a row for every task, including tasks that were not recorded."""
    homes = {agent: path.name for path in (docs / "algorithms").glob("*.md") for agent in agents_of(path.read_text())}

    def title(task: LearningTask) -> str:
        return f"[{task.title}](algorithms/{homes[task.agent]}#learning)" if task.agent in homes else task.title

    published, ours = _tables(TASKS.values(), results, title)
    return "\n".join([published, OURS, ours])


def learning_section(agents: Sequence[str], results: Mapping[str, Any]) -> str:
    """Return the tables of the tasks of some agents: results, published figures and provenance."""
    tasks = {name: task for name, task in TASKS.items() if task.agent in agents}
    recorded = {name: results[name] for name in tasks if name in results}
    published, ours = _tables(tasks.values(), results, lambda task: f"`{task.name}`: {task.title}")
    notes = [f"`{name}`: {result['notes']}\n" for name, result in recorded.items() if result.get("notes")]
    notes += [_learned_from(name, result["recorded"]) for name, result in recorded.items() if "recorded" in result]
    ours = f"No published figure, own threshold:\n\n{ours}" if ours else ""
    return "\n".join([INTRODUCTION, *filter(None, [published, ours]), *notes, *_provenances(recorded)])


def _learned_from(name: str, recorded: Mapping[str, Any]) -> str:
    mean, spread = recorded["episode_return_mean"], recorded["episode_return_std"]
    return (
        f"`{name}`: trained on {recorded['num_steps']:,} transitions in {recorded['num_episodes']:,} episodes with "
        f"return {mean:,.1f} ± {spread:,.1f}, from the replay buffer of `{' '.join(recorded['overrides'])}`.\n"
    )


def show_value(point: Point) -> str:
    """Return the return (or score) of an evaluation with its uncertainty over the seeds, as text."""
    if "by_seed" not in point:
        digits = _digits([point["mean"]])
        return f"{point['mean']:,.{digits}f}" + ("" if point["spread"] is None else f" ± {point['spread']:,.{digits}f}")
    summary, digits = summarize(point["by_seed"]), _digits(point["by_seed"])
    text = f"{'IQM ' * summary.is_iqm}{summary.value:,.{digits}f}"
    if summary.low is None:
        return f"{text} ({min(point['by_seed']):,.{digits}f} .. {max(point['by_seed']):,.{digits}f})"
    return f"{text} [{summary.low:,.{digits}f}, {summary.high:,.{digits}f}]"


def _digits(values: Sequence[float]) -> int:
    """Return the number of decimals: one for a return, three for a fraction."""
    return 3 if max(map(abs, values)) <= 1.0 else 1


def _tables(tasks: Iterable[LearningTask], results: Mapping[str, Any], title: Any) -> tuple[str, str]:
    """Return the tables of tasks with and without a published figure; an empty text replaces an empty table."""
    published, ours = [], []
    for task in tasks:
        result = results.get(task.name)
        if result is None:
            (published if task.published else ours).append(_row_not_recorded(task, title(task)))
            continue
        judgment = task.judge(result["curve"])
        head = [title(task) + (f", {result['backend']}" if result.get("backend") else ""), str(len(result["seeds"]))]
        first = f"{judgment.reached['timesteps']:,} steps" if judgment.reached else "never"
        if task.published:
            cells = [_show_published(task.published), f">= {task.bound:,.1f}", _show_at(judgment.point)]
            published.append([*head, *cells, _show_verdict(judgment), first])
        else:
            ours.append([*head, task.limit, first, _show_at(result["curve"][-1]), _show_verdict(judgment)])
    return (
        table(PUBLISHED_COLUMNS, published) if published else "",
        table(OUR_COLUMNS, ours) if ours else "",
    )


def _row_not_recorded(task: LearningTask, title: str) -> list[str]:
    if task.published:
        return [title, "-", _show_published(task.published), f">= {task.bound:,.1f}", "-", "not recorded", "-"]
    return [title, "-", task.limit, "-", "-", "not recorded"]


def _show_published(theirs: Published) -> str:
    spread = "" if theirs.spread is None else f" ± {theirs.spread:,.1f}"
    return f"{theirs.mean:,.1f}{spread} after {theirs.timesteps:,} steps: [{theirs.by}]({theirs.source})"


def _show_at(point: Point | None) -> str:
    return f"{show_value(point)} at {point['timesteps']:,}" if point else "not evaluated in time"


def _show_verdict(judgment: Judgment) -> str:
    return verdict(judgment.met) + (", with a shorter training" if judgment.shorter else "")


def _provenances(results: Mapping[str, Any]) -> Iterable[str]:
    """Return date, machine and versions, each combination once with its tasks."""
    by_origin: dict[str, list[str]] = {}
    for name, result in results.items():
        by_origin.setdefault(json.dumps([result.get(x) for x in ("date", "machine", "versions")]), []).append(name)
    for names in by_origin.values():
        first = results[names[0]]
        origin = {
            key: first[key] for key in ("date", "machine") if key in first
        }  # the load is omitted: it does not affect returns
        yield provenance(origin, show_versions(first["versions"]), f"`python -m benchmarks.learning {' '.join(names)}`")
