"""Tables of compiled programs: on the console, and in ``docs/guide/gpu.md`` between two comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.breakdown import break_down, describe_loops, estimate, waits
from benchmarks.gpu.measured_page import measured_section, rows_of
from benchmarks.gpu.setting import SETTINGS, Bar, GpuSetting
from benchmarks.markdown import provenance, show_versions, table, verdict
from benchmarks.results import RESULTS, load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "gpu.md"
_PLACE = re.compile(r"(<!-- gpu programs -->\n).*?(<!-- end of gpu programs -->)", re.DOTALL)
_MEASURED = re.compile(r"(<!-- gpu measurements -->\n).*?(<!-- end of gpu measurements -->)", re.DOTALL)
_MAX_LOOPS = 80  # characters of an expression in a table
COLUMNS = ["program", "kernels", "environment step", "update", "rest", "waits"]
COLUMNS += ["moved, MB", "temporary, MB", "by `--plan`, MB", "estimate, steps/s"]
MESH_COLUMNS = ["program", "kernels", "all-reduces", "other collectives", "their bytes", "temporary, MB"]


def with_gpu(page: str, results: Path = RESULTS) -> str:
    """Return the text of a page with the tables generated from the results in a folder."""
    page = _PLACE.sub(lambda place: f"{place[1]}{static_section(load('gpu', results))}\n{place[2]}", page)
    return _MEASURED.sub(lambda place: f"{place[1]}{measured_section(rows_of(results))}\n{place[2]}", page)


def write_gpu_page(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Regenerate the tables of the page."""
    page.write_text(with_gpu(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def show_side(setting: GpuSetting, cost: Mapping[str, Any]) -> str:
    """Return the cost of a side as a line of console output."""
    if "error" in cost:
        return f"failed: {cost['error']}"
    speed = estimate(setting, cost)
    parts = [
        f"{cost['kernels']:,} kernels = {describe_loops(cost)}",
        f"{cost['unknown_loops']:,} turns of uncounted loops",
        f"{cost['conditionals']:,} branches",
        f"{cost['host_calls']} host calls",
        f"{cost['wide_floats']} float64",
        f"{cost['traffic_bytes'] / 1e6:,.0f} MB moved",
        f"{cost['temporary_bytes'] / 1e6:,.1f} MB temporary",
        *(f"{count:,} x {kind}" for kind, count in cost["collectives"].items()),
        f"estimate {speed.steps_per_second:,.0f} steps/s, bound by {speed.bound}",
    ]
    return "; ".join(parts)


def static_section(results: Mapping[str, Any]) -> str:
    """Return the tables of all recorded settings: programs, requirements, meshes, and where the figures are from."""
    recorded = {name: setting for name, setting in SETTINGS.items() if name in results}
    titles = "".join(f"- `{name}`: {setting.title}.\n" for name, setting in recorded.items())
    rows, limits, meshes, errors, costs_of = [], [], [], [], {}
    for name, setting in recorded.items():
        sides = {row["side"]: row for row in results[name]["sides"]}
        errors += [f"`{name}`, {side}: {row['error']}\n" for side, row in sides.items() if "error" in row]
        costs = {side: row for side, row in sides.items() if "error" not in row}
        costs_of |= {f"`{name}`, {side}": cost for side, cost in costs.items()}
        rows += [_row(name, setting, side, cost) for side, cost in costs.items() if "devices" not in side]
        meshes += [_mesh_row(name, side, cost) for side, cost in costs.items() if "devices" in side]
        if "evorl" in costs:
            count = costs["evorl"]["unknown_loops"]
            limits.append([f"`{name}`", "turns of loops of unknown length", f"{count:,}", "0", verdict(count == 0)])
        limits += [row for bar in setting.bars if (row := _bar_row(name, bar, costs))]
    parts = [
        titles,
        table(COLUMNS, rows),
        _exceptions(costs_of),
        "Requirements:\n",
        table(["setting", "evorl, or evorl / peer", "", "required", ""], limits),
    ]
    if meshes:
        parts += ["Programs of one device of a mesh, an iteration:\n", table(MESH_COLUMNS, meshes)]
    return "\n".join([*parts, *errors, *_provenances({name: results[name] for name in recorded})])


def _exceptions(costs: Mapping[str, Any]) -> str:
    """Return the programs that call the host or compute in float64."""
    lines = [
        f"{name}: {cost['host_calls']} calls of the host, {cost['wide_floats']} operations in float64.\n"
        for name, cost in costs.items()
        if cost["host_calls"] or cost["wide_floats"]
    ]
    return "\n".join(lines) or "None of these programs calls the host or computes in float64.\n"


def _row(name: str, setting: GpuSetting, side: str, cost: Mapping[str, Any]) -> list[str]:
    parts, speed = break_down(setting, cost), estimate(setting, cost)
    loops = describe_loops(cost)
    kernels = f"{cost['kernels']:,}" + (f" = {loops}" if len(loops) <= _MAX_LOOPS else "")
    return [
        f"`{name}`, {side}",
        kernels,
        *("-" if part is None else f"{part:,.4g}" for part in (parts.step, parts.update)),
        f"{parts.rest:,}",
        f"{waits(cost):,}",
        f"{cost['traffic_bytes'] / 1e6:,.0f}",
        f"{cost['temporary_bytes'] / 1e6:,.1f}",
        f"{cost['estimated_bytes'] / 1e6:,.1f}" if "estimated_bytes" in cost else "-",
        f"{speed.steps_per_second:,.0f}" + (" (memory)" if speed.bound == "memory" else ""),
    ]


def _mesh_row(name: str, side: str, cost: Mapping[str, Any]) -> list[str]:
    others = {kind: count for kind, count in cost["collectives"].items() if kind != "all-reduce"}
    return [
        f"`{name}`, {side.removeprefix('evorl, ')}",
        f"{cost['kernels']:,}",
        f"{cost['collectives'].get('all-reduce', 0):,}",
        ", ".join(f"{count:,} {kind}" for kind, count in others.items()) or "-",
        f"{cost['collective_bytes']:,}",
        f"{cost['temporary_bytes'] / 1e6:,.1f}",
    ]


def _bar_row(name: str, bar: Bar, costs: Mapping[str, Any]) -> list[str] | None:
    if not {"evorl", bar.peer} <= costs.keys():
        return None
    ratio = costs["evorl"][bar.quantity] / costs[bar.peer][bar.quantity]
    quantity = {"kernels": "kernels", "temporary_bytes": "temporary memory"}[bar.quantity]
    return [f"`{name}`, {bar.peer}", quantity, f"{ratio:.2f}", f"<= {bar.at_most:g}", verdict(ratio <= bar.at_most)]


def _provenances(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield date, machine and versions, each combination once with its settings."""
    by_origin: dict[str, list[str]] = {}
    for name, result in results.items():
        of_sides = {package: v for row in result["sides"] for package, v in row.get("versions", {}).items()}
        if "evorl" in (row["side"] for row in result["sides"]):  # rejax has another gymnax
            of_sides |= next(row for row in result["sides"] if row["side"] == "evorl").get("versions", {})
        by_origin.setdefault(json.dumps([result["date"], result["machine"], of_sides]), []).append(name)
    for origin, names in by_origin.items():
        date, machine, of_sides = json.loads(origin)
        about = {"date": date, "machine": f"Compiled on {machine}"}
        yield provenance(about, show_versions(of_sides), ", ".join(f"`{name}`" for name in names))
