"""Results as text, as JSON in ``docs/results`` and as tables in ``docs/benchmarks.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison import show_quantity

DOCS = Path(__file__).resolve().parent.parent / "docs"


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


def record(kind: str, name: str, result: Mapping[str, Any]) -> None:
    """Put a result into ``docs/results/<kind>.json``, in place of the one of that name."""
    path = DOCS / "results" / f"{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results[name] = result
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
