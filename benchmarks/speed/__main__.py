"""``python -m benchmarks.speed [names...]``: measure speed, memory and start-up times."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import about
from benchmarks.pages import write_pages
from benchmarks.results import record
from benchmarks.speed.comparison import COMPARISONS, OWN_PYTHON, readings_by_side
from benchmarks.speed.measuring import MeasurementFailed, run_comparison
from benchmarks.speed.page import show_comparison
from evorl.config.names import no_such


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(COMPARISONS)}; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (default 5)")
    for peer, packages in OWN_PYTHON.items():
        variable = f"{peer.upper()}_PYTHON"
        parser.add_argument(
            f"--{peer}-python",
            default=os.environ.get(variable),
            help=f"Python of a virtual environment with {packages} (default: ${variable})",
        )
    parser.add_argument("--record", action="store_true", help="record the results and regenerate the pages")
    parser.add_argument("--keep", metavar="FOLDER", help="keep logs and compiled programs here, and reuse the latter")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in COMPARISONS]
    if unknown:
        parser.error(no_such("comparison", unknown[0], COMPARISONS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        passed = [_run(name, options, folder) for name in options.names or COMPARISONS]
    return 0 if all(passed) else 1


def _run(name: str, options: argparse.Namespace, folder: Path) -> bool:
    """Measure one comparison, show it, and record it if requested; return False if a bar was missed."""
    comparison = COMPARISONS[name]
    pythons = {peer: getattr(options, f"{peer}_python") for peer in OWN_PYTHON}
    for peer, python in pythons.items():
        if peer in comparison.pythons and not python:
            print(f"{name}: skipped, because --{peer}-python is not set")
            return True
    print(f"{name}: {comparison.title}", flush=True)
    try:
        result = run_comparison(comparison, pythons, options.rounds, folder, lambda text: print(text, flush=True))
    except MeasurementFailed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print(show_comparison(comparison, result), flush=True)
    if options.record:
        record("speed", name, {**result, **about(), "command": f"python -m benchmarks.speed {name}"})
        write_pages()
    readings = readings_by_side(result["readings"])
    return all(bar.judge(readings).met is not False for bar in comparison.bars)


if __name__ == "__main__":
    sys.exit(main())
