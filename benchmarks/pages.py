"""Generate the documentation pages that consist of recorded results: ``python -m benchmarks.pages``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.defaults.page import defaults_section
from benchmarks.gpu.page import write_gpu_page
from benchmarks.learning.page import LEARNING, homes_of, learning_summary, write_algorithm_pages
from benchmarks.learning.tuned import tuned_page, write_results
from benchmarks.results import RESULTS, load
from benchmarks.speed.comparison import COMPARISONS
from benchmarks.speed.page import SPEED, speed_details, speed_summary
from benchmarks.speed.picture import write_speed_pictures

DOCS = Path(__file__).resolve().parent.parent / "docs"

HEAD = """<!-- Generated from benchmarks/results by python -m benchmarks.pages; do not edit. -->
# Benchmarks

Speed, memory and learning performance. Each table shows the requirement next to the measurement; requirements that are
not met are marked. To reproduce the results:

```bash
make bench                                      # all speed comparisons
make bench ARGS="replay_add recorders"          # only these
python -m benchmarks.speed replay_add --record  # record the result; --help: rounds, interpreters of peers
python -m benchmarks.learning ppo_cartpole      # a learning task with 5 seeds, recorded; --help: other numbers of seeds
python -m benchmarks.learning --all --jobs 2    # all that are missing or stale, cheapest first; --hours: a time limit;
                                                # --folder: continue interrupted training runs
python -m benchmarks.pages                      # generate this page and all other pages of results
```

`benchmarks/speed/comparisons.yaml` defines the comparisons, `benchmarks/learning/tasks.yaml` the learning tasks,
`benchmarks/defaults/tasks.yaml` the tasks [without tuned settings](#without-tuned-settings).
"""


def benchmarks_page(
    speed: Mapping[str, Any], learning: Mapping[str, Any], defaults: Mapping[str, Any], docs: Path = DOCS
) -> str:
    """Return the Markdown text of ``benchmarks.md`` in the folder ``docs``."""
    details = [speed_details(name, speed[name]) for name in COMPARISONS if name in speed]
    learned = [LEARNING, learning_summary(learning, docs), defaults_section(defaults)]
    return "\n".join([HEAD, SPEED, speed_summary(speed), *details, *learned])


def write_pages(docs: Path = DOCS, results: Path = RESULTS, configs: Path | None = None) -> None:
    """Write the pages and pictures of a folder ``docs``, and the results of the tuned settings into a config tree.

    Args:
        docs: folder of the pages.
        results: folder of the recorded results.
        configs: config tree for ``experiment/_results.json``; ``None`` for the shipped one.
    """
    speed, learning = load("speed", results), load("learning", results)
    page = benchmarks_page(speed, learning, load("defaults", results), docs)
    (docs / "benchmarks.md").write_text(page, encoding="utf-8")
    write_speed_pictures(speed, docs / "assets")
    write_algorithm_pages(docs, learning)
    write_gpu_page(docs / "guide" / "gpu.md", results)
    (docs / "guide" / "tuned_settings.md").write_text(tuned_page(learning, homes_of(docs)), encoding="utf-8")
    write_results(learning, configs)


if __name__ == "__main__":
    write_pages()
