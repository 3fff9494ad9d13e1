"""Documentation and console output of the measurements of speed, memory and startup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import provenance, show_versions, table, verdict
from benchmarks.speed.comparison import (
    COMPARISONS,
    CPU_QUANTITIES,
    Bar,
    Comparison,
    Readings,
    medians_of,
    readings_by_side,
    show_quantity,
)

SPEED = """
## Speed

The sides of a comparison are processes on one machine, measured alternately, so that other load affects all of them.
Values are medians over the rounds; a range is the minimum and maximum over the rounds. *Per CPU second* is the same
ratio in terms of the processor time, user and system, of all threads: it depends less on other load, and shows the use
of a second core. Training runs call `learn` and record as usual, without evaluations; compilation is excluded. The
*floor* of a training run is the cost of stepping alone: the same batch of environments on one device, with random
actions and without chunks.

Peers run as published by their authors: rejax 0.1.3 with gymnax 0.0.9 in a separate virtual environment
(`--rejax-python`), evosax and brax in the environment of evorl. brax's trainer calls `jax.device_put_replicated`, which
JAX has removed: the measuring process supplies only this function (`benchmarks/speed/peers/brax_ppo.py`).
"""


def speed_summary(results: Mapping[str, Any]) -> str:
    """Return a table with a row for every bar, including bars that were not recorded."""
    rows = []
    for name, comparison in COMPARISONS.items():
        readings = readings_by_side(results[name]["readings"]) if name in results else {}
        link = f"[`{name}`](#{name})" if readings else f"`{name}`"
        rows += [[link, *_bar_cells(bar, readings)] for bar in comparison.bars]
    return table(["comparison", "", "measured", "range", "per CPU second", "required", ""], rows)


def speed_details(name: str, result: Mapping[str, Any]) -> str:
    """Return the section of one comparison: the measurements of every side, and their provenance."""
    quantity, readings = result["quantity"], readings_by_side(result["readings"])
    cpu_quantity, medians = CPU_QUANTITIES.get(quantity, ""), medians_of(readings)
    rows = []
    for side, rounds in readings.items():
        numbers = [reading[quantity] for reading in rounds]
        cells = [medians[side][quantity], min(numbers), max(numbers)]
        cpu = medians[side].get(cpu_quantity)
        cpu_text = "" if cpu is None else show_quantity(cpu_quantity, cpu)
        rows.append([side, *[show_quantity(quantity, number) for number in cells], cpu_text])
    columns = ["", "median", "min", "max", "by CPU time"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    num_rounds = len(next(iter(readings.values())))
    return "\n".join(
        [
            f"### {name} {{ #{name} }}\n",
            f"{result['title']}.\n",
            table(columns, rows),
            *([f"{result['notes']}\n"] if result.get("notes") else []),
            provenance(result, f"{num_rounds} rounds", _versions_by_side(result["versions"]), f"`{result['command']}`"),
        ]
    )


def show_comparison(comparison: Comparison, result: Mapping[str, Any]) -> str:
    """Return medians with their ranges, and the bars, as console output."""
    readings, quantity, lines = readings_by_side(result["readings"]), comparison.quantity, []
    cpu_quantity = CPU_QUANTITIES.get(quantity, "")
    for side, median in medians_of(readings).items():
        numbers = [reading[quantity] for reading in readings[side]]
        low, high = (show_quantity(quantity, number) for number in (min(numbers), max(numbers)))
        cpu = f"   {show_quantity(cpu_quantity, median[cpu_quantity])}" if cpu_quantity in median else ""
        lines.append(f"    {side:20s} {show_quantity(quantity, median[quantity]):>16s}   ({low} .. {high}){cpu}")
    for bar in comparison.bars:
        judged = bar.judge(readings)
        met = "" if judged.met is None else f"   required {bar.limit}: {'met' if judged.met else 'NOT MET'}"
        lines.append(f"    {bar.text:20s} {judged.value:16.3g}   ({judged.lowest:.3g} .. {judged.highest:.3g}){met}")
    return "\n".join(lines)


def _bar_cells(bar: Bar, readings: Readings) -> list[str]:
    """Return the cells of a bar: text, value, range, value per CPU second, requirement, and verdict."""
    if not bar.is_measured(readings):
        return [bar.text, "-", "-", "-", bar.limit, "not recorded"]
    judged, by_cpu = bar.judge(readings), bar.per_cpu_second
    cpu = f"{by_cpu.judge(readings).value:.3g}" if by_cpu is not None and by_cpu.is_measured(readings) else "-"
    met = "" if judged.met is None else verdict(judged.met)
    return [bar.text, f"{judged.value:.3g}", f"{judged.lowest:.3g} .. {judged.highest:.3g}", cpu, bar.limit, met]


def _versions_by_side(versions: Mapping[str, Mapping[str, str]]) -> str:
    """Return the package versions, each combination once with its sides."""
    sides_by_versions: dict[str, list[str]] = {}
    for side, installed in versions.items():
        sides_by_versions.setdefault(show_versions(installed), []).append(side)
    if len(sides_by_versions) == 1:
        return next(iter(sides_by_versions))
    return "; ".join(f"{' and '.join(sides)}: {shown}" for shown, sides in sides_by_versions.items())
