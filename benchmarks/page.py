"""The page of the documentation on benchmarks, made of recorded results and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.comparison import show_quantity
from benchmarks.learning_tasks import TASKS
from benchmarks.speed_comparisons import COMPARISONS

HEAD = """<!-- Made of docs/results by python -m benchmarks.results; its text stands in benchmarks/page.py. -->
# Benchmarks

How fast, in how much memory, and what is learned. What is asked stands beside what was measured, and what is not met is
listed as such. Everything here is repeated by

```bash
make bench                                      # all comparisons of speed
make bench ARGS="replay_add recorders"          # some of them
python -m benchmarks.speed --help               # recording, repeats, the Python of a peer
python -m benchmarks.learning                   # all learning tasks, more than an hour
python -m benchmarks.results                    # this page, from docs/results
```
"""

SPEED = """
## Speed

The sides of a comparison are processes on one machine, measured in turn, so that whatever else the machine does falls
on all of them. Values are medians over the rounds; a range has the least and the greatest of a round. Trainings run
through `learn`, record as usual, and do not evaluate; compilation is excluded. The *floor* of a training is the same
batch of environments stepped with random actions on one device, unchunked: what stepping alone costs. Peers run in a
virtual environment of their own, `--rejax-python`, with rejax 0.1.3 and gymnax 0.0.9.
"""

LEARNING = """
## Learning

Trainings by the shipped configs. A return is the mean over complete evaluation episodes of all seeds; ± is the standard
deviation over seeds, or over episodes where there is one seed. Seconds count from the start of the training, set-up and
compilation (without a cache) and evaluations included; several seeds train side by side in one program.
"""


def page(speed: Mapping[str, Any], learning: Mapping[str, Any]) -> str:
    """Markdown."""
    parts = [HEAD, SPEED, speed_summary(speed)]
    parts += [speed_details(name, speed[name]) for name in COMPARISONS if name in speed]
    parts += [LEARNING, learning_summary(learning)]
    parts += [learning_details(name, learning[name]) for name in TASKS if name in learning]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"


def verdict(met: bool) -> str:
    """In words."""
    return "met" if met else "**not met**"


def speed_summary(results: Mapping[str, Any]) -> str:
    """A row for every bar; comparisons that were not recorded are told too."""
    rows = []
    for name in COMPARISONS:
        if name not in results:
            rows.append([f"`{name}`", *[bar.text for bar in COMPARISONS[name].bars[:1]], "-", "-", "-", "not recorded"])
            continue
        for bar in results[name]["bars"]:
            spread = f"{bar['lowest']:.3g} .. {bar['highest']:.3g}"
            link = f"[`{name}`](#{name})"
            rows.append([link, bar["text"], f"{bar['value']:.3g}", spread, bar["limit"], verdict(bar["met"])])
    return table(["comparison", "", "measured", "range", "asked", ""], rows)


def speed_details(name: str, result: Mapping[str, Any]) -> str:
    """What every side measured, and with what."""
    quantity, rows = result["quantity"], []
    for side_name, side in result["sides"].items():
        found = [reading[quantity] for reading in side["readings"]]
        cpu = side["median"].get("steps_per_cpu_second")
        cells = [side["median"][quantity], min(found), max(found)]
        rows.append([side_name, *[show_quantity(quantity, x) for x in cells], f"{cpu:,.0f}" if cpu else ""])
    columns = ["", "median", "least", "greatest", "steps per cpu second"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    rounds = len(next(iter(result["sides"].values()))["readings"])
    return "\n".join(
        [
            f"### {name} {{ #{name} }}\n",
            f"{result['title']}.\n",
            table(columns, rows),
            *_notes(result),
            _provenance(result, _versions_by_side(result["sides"]), f"{rounds} rounds"),
        ]
    )


def learning_summary(results: Mapping[str, Any]) -> str:
    """A row for every task; those that were not recorded are told too."""
    rows = []
    for name, task in TASKS.items():
        if name not in results:
            rows.append([task.title, *["-"] * 4, task.limit, "not recorded"])
            continue
        result = results[name]
        backend = f", {result['backend']}" if result.get("backend") else ""
        reached = result["reached"]
        when = f"{reached['timesteps']:,} steps, {_minutes(reached['seconds'])}" if reached else "-"
        link = f"[{result['title']}](#learning-{name}){backend}"
        best, last = (_point(result[which]) for which in ("best", "last"))
        rows.append([link, str(len(result["seeds"])), when, best, last, result["limit"], verdict(result["met"])])
    return table(["task", "seeds", "reached after", "best", "last", "asked", ""], rows)


def learning_details(name: str, result: Mapping[str, Any]) -> str:
    """The evaluations of a task, at most a dozen of them."""
    curve = result["curve"]
    every = -(-len(curve) // 12) or 1
    shown = [point for i, point in enumerate(curve, start=1) if i % every == 0 or i == len(curve)]
    rows = [[f"{point['timesteps']:,}", f"{point['seconds']:.0f}", _point(point)] for point in shown]
    seeds = ", ".join(map(str, result["seeds"]))
    devices = result["num_devices"]
    told = f"{result['timesteps']:,} steps in {_minutes(result['seconds'])}"
    told += f", {result['eval_episodes']} episodes in an evaluation"
    run = f"`python scripts/train.py {' '.join(result['overrides'])}`"
    return "\n".join(
        [
            f"### {result['title']} {{ #learning-{name} }}\n",
            f"{run}: seeds {seeds} on {devices} device{'s' * (devices != 1)}, {told}.\n",
            table(["steps", "seconds", "return"], rows),
            *_notes(result),
            _provenance(result, _versions(result["versions"])),
        ]
    )


def _point(point: Mapping[str, Any] | None) -> str:
    return f"{point['mean']:,.1f} ± {point['spread']:,.1f}" if point else "-"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _notes(result: Mapping[str, Any]) -> list[str]:
    return [f"{result['notes']}\n"] if result.get("notes") else []


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _versions_by_side(sides: Mapping[str, Any]) -> str:
    """Versions, each set once, with the sides that had it."""
    by_versions: dict[str, list[str]] = {}
    for name, side in sides.items():
        by_versions.setdefault(_versions(side["versions"]), []).append(name)
    if len(by_versions) == 1:
        return next(iter(by_versions))
    return "; ".join(f"{', '.join(names)}: {versions}" for versions, names in by_versions.items())


def _provenance(result: Mapping[str, Any], versions: str, rounds: str = "") -> str:
    load = f"load at most {result['load']:.1f}" if "load" in result else ""
    told = [result.get("date", ""), rounds, result.get("machine", ""), load, versions]
    told.append(f"`{result['command']}`" if "command" in result else "")
    return f"<small>{'. '.join(text for text in told if text)}</small>\n"
