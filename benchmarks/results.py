"""Results as text, and as JSON in ``docs/results``.

``python -m benchmarks.results`` makes ``docs/benchmarks.md`` of them, and the tables in ``docs/algorithms``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison import show_quantity
from benchmarks.machine import about

DOCS = Path(__file__).resolve().parent.parent / "docs"

__all__ = ["about", "load", "record", "show_comparison", "show_learning", "write_pages"]


def show_comparison(result: Mapping[str, Any]) -> str:
    """Medians with their spread, and the bars, for the screen."""
    lines = []
    for name, side in result["sides"].items():
        found = [reading[result["quantity"]] for reading in side["readings"]]
        shown = [show_quantity(result["quantity"], x) for x in (min(found), max(found))]
        median = show_quantity(result["quantity"], side["median"][result["quantity"]])
        cpu = side["median"].get("steps_per_cpu_second")
        shown_cpu = f"   {show_quantity('steps_per_cpu_second', cpu)}" if cpu else ""
        lines.append(f"    {name:20s} {median:>16s}   ({shown[0]} .. {shown[1]}){shown_cpu}")
    for bar in result["bars"]:
        verdict = "met" if bar["met"] else "NOT MET"
        lines.append(
            f"    {bar['text']:20s} {bar['value']:16.3g}   ({bar['lowest']:.3g} .. {bar['highest']:.3g})"
            f"   asked {bar['limit']}: {verdict}"
        )
    return "\n".join(lines)


def show_learning(result: Mapping[str, Any]) -> str:
    """When the threshold was reached, and the end, for the screen."""
    reached, best = result["reached"], result["best"]
    lines = [f"    asked {result['limit']}: {'met' if result['met'] else 'NOT MET'}"]
    if reached:
        lines.append(
            f"    reached at {reached['timesteps']:,} steps, {reached['seconds']:.0f} s: {reached['mean']:.1f}"
        )
    if best:
        lines.append(f"    best {best['mean']:.1f} at {best['timesteps']:,}; last {result['last']['mean']:.1f}")
    lines.append(f"    {result['timesteps']:,} steps in {result['seconds']:.0f} s")
    return "\n".join(lines)


def load(kind: str, docs: Path = DOCS) -> dict[str, Any]:
    """The recorded results of ``docs/results/<kind>.json`` by name; none if there is no such file."""
    path = docs / "results" / f"{kind}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record(kind: str, name: str, result: Mapping[str, Any], docs: Path = DOCS) -> None:
    """Put a result into ``docs/results/<kind>.json``, in place of the one of that name, and renew the pages.

    ``notes`` (written into the file by hand: why a bar is not met) stay with the name.
    """
    results = load(kind, docs)
    notes = results.get(name, {}).get("notes")
    results[name] = {**result, **({"notes": notes} if notes else {})}
    path = docs / "results" / f"{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_pages(docs)


def write_pages(docs: Path = DOCS) -> None:
    """Write ``benchmarks.md`` and the tables in the algorithms' pages from the results."""
    from benchmarks.learning_page import write_algorithm_pages
    from benchmarks.page import page

    learning = load("learning", docs)
    (docs / "benchmarks.md").write_text(page(load("speed", docs), learning, docs), encoding="utf-8")
    write_algorithm_pages(docs, learning)


if __name__ == "__main__":
    write_pages()
