"""The page of the documentation on benchmarks, made of recorded results and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison import show_quantity
from benchmarks.learning_page import LEARNING, learning_summary
from benchmarks.markdown import provenance, show_versions, table, verdict
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
python -m benchmarks.results                    # this page and the tables of the algorithms, from docs/results
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


def page(speed: Mapping[str, Any], learning: Mapping[str, Any], docs: Path) -> str:
    """Markdown of a page in the folder ``docs``."""
    parts = [HEAD, SPEED, speed_summary(speed)]
    parts += [speed_details(name, speed[name]) for name in COMPARISONS if name in speed]
    parts += [LEARNING, learning_summary(learning, docs)]
    return "\n".join(parts)


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
            *([f"{result['notes']}\n"] if result.get("notes") else []),
            provenance(result, f"{rounds} rounds", _versions_by_side(result["sides"]), f"`{result['command']}`"),
        ]
    )


def _versions_by_side(sides: Mapping[str, Any]) -> str:
    """Versions, each set once, with the sides that had it."""
    by_versions: dict[str, list[str]] = {}
    for name, side in sides.items():
        by_versions.setdefault(show_versions(side["versions"]), []).append(name)
    if len(by_versions) == 1:
        return next(iter(by_versions))
    return "; ".join(f"{', '.join(names)}: {versions}" for versions, names in by_versions.items())
