"""Documentation of learning performance: an overview, and the tables in the page of each algorithm.

A page of ``docs/algorithms`` has its tables between two comments, ``<!-- learning -->`` and
``<!-- end of learning -->``. They cover the agents whose settings the page documents.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.curves import FOLDER, draw_curve, file_names
from benchmarks.learning.tables import Row, published_table, regression_table, rows_of, stale_table, with_pictures
from benchmarks.learning.task import SEARCHES, TASKS, LearningTask
from benchmarks.markdown import provenance, show_versions

_PLACE = re.compile(r"(<!-- learning -->\n).*?(<!-- end of learning -->)", re.DOTALL)
_SETTINGS = re.compile(r"<!-- settings: configs/agent/([\w/]+)\.yaml -->")

LEARNING = """
## Learning

Training runs with the shipped configs; several seeds run in parallel in one program, or one after another. The return
of a seed is the mean over 20 complete evaluation episodes of the greedy policy. *Mean* and *IQM* (interquartile mean)
are over all seeds; square brackets contain the 95 % stratified bootstrap interval of the mean (10,000 resamples).
*Seeds* counts the seeds that meet the requirement individually. `benchmarks/results/learning` contains the learning
curve of each seed, `benchmarks/results/learning.jsonl` the settings, versions, machine and commit. Times are omitted,
since they depend on the load of the machine.

A result counts only if its settings equal those in `benchmarks/learning/tasks.yaml` today. Other results are *stale*:
they are listed with the reason, and do not meet any requirement.
"""

PUBLISHED = """
### Published figures

Published results for the same algorithm and environment; the algorithm pages list versions and differences.
The last evaluation up to the published number of environment steps counts: an action that is repeated 8 times is 8
environment steps. The requirement depends on the published data:

- The result of each seed is published: the probability that one of our seeds exceeds one of theirs. The result is
  *better* if its 95 % interval is above 0.5, *not worse* if the interval contains 0.5, *worse* otherwise.
- Mean and standard deviation over seeds are published: the mean minus its standard error.
- One training run, or a mean without a deviation over seeds, is published: the mean. The deviation that RL Baselines3
  Zoo publishes is over the episodes of one training run, and does not lower the requirement.

*Seeds* counts our seeds that reach the published mean minus its standard error, or the published mean.
"""

OURS = """
### Regression figures

No published figure was found for the same algorithm and environment. Each task therefore has a threshold of our own,
which only shows whether a change breaks the algorithm. The mean over all seeds at the last evaluation within the limit
must reach it. Tasks with `<` cannot be solved by the method: no evaluation may reach the threshold.
"""

STALE = """
### Stale results

Results of earlier settings, shown until `python -m benchmarks.learning --all` records them again.
"""

INTRODUCTION = """
Results of the shipped configs, recorded with `python -m benchmarks.learning`. [Benchmarks](../benchmarks.md#learning)
explains the columns and the requirements.
"""


def agents_of(page: str) -> list[str]:
    """Return the agents whose settings a page documents."""
    return _SETTINGS.findall(page)


def homes_of(docs: Path) -> dict[str, str]:
    """Return the file in ``docs/algorithms`` that documents each agent."""
    paths = sorted((docs / "algorithms").glob("*.md"))
    return {agent: path.name for path in paths for agent in agents_of(path.read_text(encoding="utf-8"))}


def with_learning(page: str, results: Mapping[str, Any]) -> str:
    """Return the text of an algorithm page with its tables generated from the results."""
    agents = agents_of(page)
    return _PLACE.sub(lambda place: f"{place[1]}{learning_section(agents, results)}\n{place[2]}", page)


def write_algorithm_pages(docs: Path, results: Mapping[str, Any]) -> None:
    """Regenerate the tables in all pages of ``docs/algorithms``, and the pictures of their curves."""
    write_curves(docs / "algorithms" / FOLDER, pictured_rows(homes_of(docs), results))
    for path in sorted((docs / "algorithms").glob("*.md")):
        path.write_text(with_learning(path.read_text(encoding="utf-8"), results), encoding="utf-8")


def pictured_rows(homes: Mapping[str, str], results: Mapping[str, Any]) -> list[Row]:
    """Return the rows of all tasks, with the learning curves marked that the page of each algorithm shows.

    Args:
        homes: the file that documents each agent.
        results: recorded results by task.
    """
    rows = rows_of(TASKS.values(), results)
    pages: dict[str, list[Row]] = {}
    for row in rows:
        pages.setdefault(homes.get(row.task.agent, ""), []).append(row)
    drawn = {
        row.task.name: row for page, members in pages.items() for row in (with_pictures(members) if page else members)
    }
    return [drawn[row.task.name] for row in rows]


def write_curves(folder: Path, rows: Iterable[Row]) -> None:
    """Draw the learning curves of the rows that have a picture; delete all other pictures of the folder."""
    pictures = {}
    for row in rows:
        if row.pictured:
            assert row.result is not None
            for name, dark in zip(file_names(row.task), (False, True), strict=True):
                pictures[name] = draw_curve(row.task, row.result, dark=dark, stale=row.stale is not None)
    for path in folder.glob("*.svg"):
        if path.name not in pictures:
            path.unlink()
    for name, picture in pictures.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(picture, encoding="utf-8")


def learning_summary(results: Mapping[str, Any], docs: Path) -> str:
    """Return all tables, with a row for every task, including tasks that were not recorded."""
    homes = homes_of(docs)

    def title(task: LearningTask) -> str:
        return f"[{task.title}](algorithms/{homes[task.agent]}#learning)" if task.agent in homes else task.title

    rows, pictures = pictured_rows(homes, results), f"algorithms/{FOLDER}"
    texts = [
        _counts(rows),
        PUBLISHED,
        published_table(rows, title, pictures),
        OURS,
        regression_table(rows, title, pictures),
    ]
    stale = stale_table(rows, title, pictures)
    return "\n".join([*texts, STALE, stale] if stale else texts)


def _counts(rows: Sequence[Row]) -> str:
    """Return the number of tasks by kind and state as a sentence."""
    current = [row for row in rows if row.judgment is not None]
    published = [row for row in current if row.task.published]
    met = sum(row.judgment.met for row in published if row.judgment)
    stale, missing = sum(row.stale is not None for row in rows), sum(row.result is None for row in rows)
    text = (
        f"Tasks: {len(rows)}; with a published figure: {sum(row.task.published is not None for row in rows)}. "
        f"Results that count: {len(current)}; stale: {stale}; not recorded: {missing}. "
        f"Published figures with a result that counts: {len(published)}; reached: {met}."
    )
    return textwrap.fill(text, 120) + "\n"


def learning_section(agents: Sequence[str], results: Mapping[str, Any]) -> str:
    """Return the tables of the tasks of some agents: results, published figures, pictures and provenance."""
    rows = with_pictures(rows_of([task for task in TASKS.values() if task.agent in agents], results))

    def title(task: LearningTask) -> str:
        return f"`{task.name}`: {task.title}"

    recorded = {row.task.name: row.result for row in rows if row.result is not None}
    texts = [
        published_table(rows, title, FOLDER),
        _differences(rows),
        _searches(agents),
        *[_picture(row) for row in rows if row.pictured],
        _headed("Regression figures, with our own thresholds:", regression_table(rows, title, FOLDER)),
        _headed("Stale results, which do not count:", stale_table(rows, title, FOLDER)),
    ]
    notes = [f"`{name}`: {result['notes']}\n" for name, result in recorded.items() if result.get("notes")]
    notes += [_learned_from(name, result["recorded"]) for name, result in recorded.items() if "recorded" in result]
    return "\n".join([INTRODUCTION, *filter(None, texts), *notes, *_provenances(recorded)])


def _headed(heading: str, body: str) -> str:
    return f"{heading}\n\n{body}" if body else ""


def _differences(rows: Iterable[Row]) -> str:
    """Return the environments of the published figures and the differences, each combination once with its tasks."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.task.published is not None:
            theirs = row.task.published
            text = "; ".join(filter(None, (theirs.settings, theirs.differences)))
            names.setdefault((theirs.environment, text), []).append(f"`{row.task.name}`")
    lines = [f"- {', '.join(tasks)}: published for {env}; {text}." for (env, text), tasks in names.items()]
    return "Differences between the published runs (they) and ours (we):\n\n" + "\n".join(lines) + "\n" if lines else ""


def _searches(agents: Iterable[str]) -> str:
    """Return the unsuccessful searches for more published figures of some agents; empty if there are enough figures."""
    lines = [f"- `agent={agent}`: {SEARCHES[agent]}." for agent in agents if agent in SEARCHES]
    return "Searches for more published figures found none that fit:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _picture(row: Row) -> str:
    light, dark = file_names(row.task)
    reference = "published figure" if row.task.published else "threshold"
    text = f"Learning curve of {row.task.title} next to the {reference}"
    stale = ", a stale result" if row.stale else ""
    pictures = f"![{text}]({FOLDER}/{light}#only-light)![{text}]({FOLDER}/{dark}#only-dark)"
    return f"`{row.task.name}`{stale}:\n\n{pictures}\n"


def _learned_from(name: str, recorded: Mapping[str, Any]) -> str:
    mean, spread = recorded["episode_return_mean"], recorded["episode_return_std"]
    return (
        f"`{name}`: trained on {recorded['num_steps']:,} transitions in {recorded['num_episodes']:,} episodes with "
        f"return {mean:,.1f} ± {spread:,.1f}, from the replay buffer of `{' '.join(recorded['overrides'])}`.\n"
    )


def _provenances(results: Mapping[str, Any]) -> Iterable[str]:
    """Return date, machine, versions and commit, each combination once with its tasks."""
    by_origin: dict[str, list[str]] = {}
    for name, result in results.items():
        origin = [result.get(x) for x in ("date", "machine", "versions", "commit")]
        by_origin.setdefault(json.dumps(origin), []).append(name)
    for names in by_origin.values():
        first = results[names[0]]
        origin = {
            key: first[key] for key in ("date", "machine") if key in first
        }  # the load is omitted: it does not affect returns
        commit = f"commit {first['commit'][:8]}" if "commit" in first else "commit not stored"
        command = f"`python -m benchmarks.learning {' '.join(names)}`"
        yield provenance(origin, show_versions(first["versions"]), commit, command)
