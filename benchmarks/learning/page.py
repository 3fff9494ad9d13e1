"""What is learned, as the documentation tells it: an overview, and the tables in the page of each algorithm.

A page of ``docs/algorithms`` has its tables between two comments, ``<!-- learning -->`` and
``<!-- end of learning -->``. They are of the agents whose settings the page tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.statistics import summarize
from benchmarks.learning.task import TASKS, Judgement, LearningTask, Point, Published
from benchmarks.markdown import provenance, show_versions, table, verdict

_PLACE = re.compile(r"(<!-- learning -->\n).*?(<!-- end of learning -->)", re.DOTALL)
_SETTINGS = re.compile(r"<!-- settings: configs/agent/([\w/]+)\.yaml -->")

LEARNING = """
## Learning

Trainings by the shipped configs, several seeds side by side in one program. A return is the mean over complete
evaluation episodes (20 of each seed) and over the seeds. In square brackets stands the 95 % bootstrap interval of that
mean over at least 5 seeds (10,000 resamples); from 10 seeds on it is the interquartile mean (IQM) with its interval. Of
fewer seeds the least and the greatest are told, of a single one the standard deviation over its episodes. Curves are in
`benchmarks/results/learning`, an evaluation a line. Seconds are left out: they depend on what else a machine does.

**Published figures.** What others publish for the same algorithm and an environment of the same name is a return after
a whole training. Asked is the lower end of the published band, mean less spread, at the published number of steps: our
last evaluation up to there counts. *First there* is the first evaluation that has it. The spread of RL Baselines3 Zoo
is the standard deviation over 150,000 steps of evaluation episodes of one training; where no spread is published, the
figure itself is asked.
"""

OURS = """
**No published figure.** For these tasks none was found for the same algorithm and environment (rejax, MinAtar and the
papers publish settings, lengths of training or plots; figures of MuJoCo's Hopper and Swimmer are of other physics than
brax's), so they have a threshold of our own: some evaluation within the limit has to reach it.
"""

INTRODUCTION = """
Trainings by the shipped configs, `python -m benchmarks.learning`. How they are measured, and what the published numbers
are, is told in [Benchmarks](../benchmarks.md#learning).
"""
PUBLISHED_COLUMNS = ["task", "seeds", "published", "asked", "ours", "", "first there"]
OUR_COLUMNS = ["task", "seeds", "asked", "first there", "last", ""]


def agents_of(page: str) -> list[str]:
    """The agents whose settings the text of a page tells."""
    return _SETTINGS.findall(page)


def with_learning(page: str, results: Mapping[str, Any]) -> str:
    """The text of an algorithm's page with the tables that follow from the results."""
    agents = agents_of(page)
    return _PLACE.sub(lambda place: f"{place[1]}{learning_section(agents, results)}\n{place[2]}", page)


def write_algorithm_pages(docs: Path, results: Mapping[str, Any]) -> None:
    """Renew the tables in all pages of ``docs/algorithms``."""
    for path in sorted((docs / "algorithms").glob("*.md")):
        path.write_text(with_learning(path.read_text(encoding="utf-8"), results), encoding="utf-8")


def learning_summary(results: Mapping[str, Any], docs: Path) -> str:
    """Both tables, with a row for every task; those that were not recorded are told too."""
    homes = {agent: path.name for path in (docs / "algorithms").glob("*.md") for agent in agents_of(path.read_text())}

    def title(task: LearningTask) -> str:
        return f"[{task.title}](algorithms/{homes[task.agent]}#learning)" if task.agent in homes else task.title

    published, ours = _tables(TASKS.values(), results, title)
    return "\n".join([published, OURS, ours])


def learning_section(agents: Sequence[str], results: Mapping[str, Any]) -> str:
    """The tasks of some agents: what was reached when, what others publish, and with what it was measured."""
    tasks = {name: task for name, task in TASKS.items() if task.agent in agents}
    recorded = {name: results[name] for name in tasks if name in results}
    published, ours = _tables(tasks.values(), results, lambda task: f"`{task.name}`: {task.title}")
    notes = [f"`{name}`: {result['notes']}\n" for name, result in recorded.items() if result.get("notes")]
    notes += [_learned_from(name, result["recorded"]) for name, result in recorded.items() if "recorded" in result]
    ours = f"No published figure, a threshold of our own:\n\n{ours}" if ours else ""
    return "\n".join([INTRODUCTION, *filter(None, [published, ours]), *notes, *_provenances(recorded)])


def _learned_from(name: str, recorded: Mapping[str, Any]) -> str:
    mean, spread = recorded["episode_return_mean"], recorded["episode_return_std"]
    return (
        f"`{name}`: learned from {recorded['num_steps']:,} transitions in {recorded['num_episodes']:,} episodes, of "
        f"return {mean:,.1f} ± {spread:,.1f}, the replay buffer of `{' '.join(recorded['overrides'])}`.\n"
    )


def show_value(point: Point) -> str:
    """The return (or score) of an evaluation with how far it may be off, as far as its seeds tell."""
    if "by_seed" not in point:
        digits = _digits([point["mean"]])
        return f"{point['mean']:,.{digits}f}" + ("" if point["spread"] is None else f" ± {point['spread']:,.{digits}f}")
    summary, digits = summarize(point["by_seed"]), _digits(point["by_seed"])
    text = f"{'IQM ' * summary.is_iqm}{summary.value:,.{digits}f}"
    if summary.low is None:
        return f"{text} ({min(point['by_seed']):,.{digits}f} .. {max(point['by_seed']):,.{digits}f})"
    return f"{text} [{summary.low:,.{digits}f}, {summary.high:,.{digits}f}]"


def _digits(values: Sequence[float]) -> int:
    """Digits behind the point: one of a return, three of a share."""
    return 3 if max(map(abs, values)) <= 1.0 else 1


def _tables(tasks: Iterable[LearningTask], results: Mapping[str, Any], title: Any) -> tuple[str, str]:
    """The table of tasks with a published figure and of those without; an empty text where there is no such task."""
    published, ours = [], []
    for task in tasks:
        result = results.get(task.name)
        if result is None:
            (published if task.published else ours).append(_row_not_recorded(task, title(task)))
            continue
        judgement = task.judge(result["curve"])
        head = [title(task) + (f", {result['backend']}" if result.get("backend") else ""), str(len(result["seeds"]))]
        first = f"{judgement.reached['timesteps']:,} steps" if judgement.reached else "never"
        if task.published:
            cells = [_show_published(task.published), f">= {task.bound:,.1f}", _show_at(judgement.point)]
            published.append([*head, *cells, _show_verdict(judgement), first])
        else:
            ours.append([*head, task.limit, first, _show_at(result["curve"][-1]), _show_verdict(judgement)])
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
    return f"{show_value(point)} at {point['timesteps']:,}" if point else "not evaluated by then"


def _show_verdict(judgement: Judgement) -> str:
    return verdict(judgement.met) + (", by a shorter training" if judgement.shorter else "")


def _provenances(results: Mapping[str, Any]) -> Iterable[str]:
    """Date, machine and versions, each set of them once with the tasks that had it."""
    by_origin: dict[str, list[str]] = {}
    for name, result in results.items():
        by_origin.setdefault(json.dumps([result.get(x) for x in ("date", "machine", "versions")]), []).append(name)
    for names in by_origin.values():
        first = results[names[0]]
        origin = {key: first[key] for key in ("date", "machine") if key in first}  # loads differ: returns do not care
        yield provenance(origin, show_versions(first["versions"]), f"`python -m benchmarks.learning {' '.join(names)}`")
