"""Tables of measurements on devices, from the rows of ``gpu_measured.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit import describe_result
from benchmarks.markdown import provenance, show_versions, table
from benchmarks.results import RESULTS

Row = Mapping[str, Any]
SPEED_COLUMNS = ["measurement", "evorl, steps/s", "peer, steps/s", "evorl / peer", "kernels", "GPU busy", "peak, MB"]
OTHER_COLUMNS = ["measurement", "result", "peak, MB"]


def rows_of(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the rows of ``gpu_measured.jsonl``, measured by ``python -m benchmarks.gpu`` on devices."""
    path = results / "gpu_measured.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def measured_section(rows: Sequence[Row]) -> str:
    """Return the tables of measurements on devices: speeds with their peers, the other results, and the machines."""
    if not rows:
        return "No measurement on a device has been recorded yet.\n"
    by_name: dict[str, dict[str, Row]] = {}
    for row in rows:  # a later row replaces an earlier one
        by_name.setdefault(row["measurement"], {})[row["side"]] = row
    speeds, others = [], []
    for name, sides in by_name.items():
        if any("steps_per_second" in row for row in sides.values()):
            speeds += _speed_rows(name, sides)
        else:
            others += [[f"`{name}`", describe_result(row), _peak(row)] for row in sides.values()]
    parts = [table(SPEED_COLUMNS, speeds)] * bool(speeds) + [table(OTHER_COLUMNS, others)] * bool(others)
    return "\n".join([*parts, *_provenances(rows)])


def _speed_rows(name: str, sides: Mapping[str, Row]) -> list[list[str]]:
    """Return a row of the table for each peer, or one without a peer."""
    ours = sides.get("evorl", {})
    peers = [side for side in sides if side != "evorl"] or [None]
    cells = []
    for peer in peers:
        theirs = sides[peer] if peer else {}
        ratio = "-"
        if "steps_per_second" in ours and "steps_per_second" in theirs:
            ratio = f"{ours['steps_per_second'] / theirs['steps_per_second']:.2f}"
        shown = f"{peer} {_speed(theirs)}" if peer else "-"
        both = (ours, theirs) if peer else (ours,)
        kernels, busy, peak = (" / ".join(show(row) for row in both) for show in (_kernels, _busy, _peak))
        cells.append([f"`{name}`", _speed(ours), shown, ratio, kernels, busy, peak])
    return cells


def _speed(row: Row) -> str:
    if "steps_per_second" not in row:
        return f"failed: {row['error']}" if "error" in row else "-"
    return f"{row['steps_per_second']:,.0f} ({min(row['readings']):,.0f} .. {max(row['readings']):,.0f})"


def _kernels(row: Row) -> str:
    return f"{row['launched']:,.0f}" if "launched" in row else "-"


def _busy(row: Row) -> str:
    return f"{row['busy_seconds'] / row['span_seconds']:.0%}" if "launched" in row else "-"


def _peak(row: Row) -> str:
    return f"{row['peak_bytes'] / 1e6:,.0f}" if "peak_bytes" in row else "-"


def _provenances(rows: Sequence[Row]) -> list[str]:
    """Return device, date, machine and versions of the rows, each combination once."""
    origins: dict[str, None] = {}
    for row in rows:
        if "device" in row:
            packages = {name: version for name, version in row["versions"].items() if name != "gymnax"}
            origins[json.dumps([row["device"], row["date"], row["machine"], packages])] = None
    shown = []
    for origin in origins:
        device, date, machine, packages = json.loads(origin)
        about = {"date": date, "machine": f"{device}, {machine}"}
        shown.append(provenance(about, show_versions(packages)))
    return shown
