"""The pages of the documentation that are made of recorded results and nothing else: ``python -m benchmarks.pages``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning.page import LEARNING, learning_summary, write_algorithm_pages
from benchmarks.results import RESULTS, load
from benchmarks.speed.comparison import COMPARISONS
from benchmarks.speed.page import SPEED, speed_details, speed_summary

DOCS = Path(__file__).resolve().parent.parent / "docs"

HEAD = """<!-- Made of benchmarks/results by python -m benchmarks.pages; its text stands beside the code there. -->
# Benchmarks

How fast, in how much memory, and what is learned. What is asked stands beside what was measured, and what is not met is
listed as such. Everything here is repeated by

```bash
make bench                                      # all comparisons of speed
make bench ARGS="replay_add recorders"          # some of them
python -m benchmarks.speed replay_add --record  # and record it; --help: rounds, Pythons of peers
python -m benchmarks.learning ppo_cartpole      # a learning task with 5 seeds, recorded; --help: other numbers of seeds
python -m benchmarks.pages                      # this page and the tables of the algorithms, from benchmarks/results
```

What is compared stands in `benchmarks/speed/comparisons.yaml`, what is learned in `benchmarks/learning/tasks.yaml`.
"""


def benchmarks_page(speed: Mapping[str, Any], learning: Mapping[str, Any], docs: Path = DOCS) -> str:
    """Markdown of ``benchmarks.md`` in the folder ``docs``."""
    details = [speed_details(name, speed[name]) for name in COMPARISONS if name in speed]
    return "\n".join([HEAD, SPEED, speed_summary(speed), *details, LEARNING, learning_summary(learning, docs)])


def write_pages(docs: Path = DOCS, results: Path = RESULTS) -> None:
    """Write ``benchmarks.md`` and the tables in the algorithms' pages from the results."""
    speed, learning = load("speed", results), load("learning", results)
    (docs / "benchmarks.md").write_text(benchmarks_page(speed, learning, docs), encoding="utf-8")
    write_algorithm_pages(docs, learning)


if __name__ == "__main__":
    write_pages()
