"""``python -m benchmarks.speed [names...]``: measure speed, memory and starting times beside peers and floors."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import MeasurementFailed, run_comparison
from benchmarks.results import about, record, show_comparison
from benchmarks.speed_comparisons import COMPARISONS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(COMPARISONS)}; all by default")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each comparison (default 5)")
    parser.add_argument(
        "--rejax-python",
        default=os.environ.get("REJAX_PYTHON"),
        help="Python of a virtual environment with rejax 0.1.3 and gymnax 0.0.9 (default: $REJAX_PYTHON)",
    )
    parser.add_argument("--record", action="store_true", help="write docs/results/speed.json and docs/benchmarks.md")
    parser.add_argument("--keep", metavar="FOLDER", help="keep logs and compiled programs here, and reuse the latter")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in COMPARISONS]
    if unknown:
        parser.error(f"there is no comparison {unknown[0]!r}; there are {', '.join(COMPARISONS)}")
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.names or COMPARISONS:
            comparison = COMPARISONS[name]
            if any(side.python == "rejax" for side in comparison.sides.values()) and not options.rejax_python:
                print(f"{name}: left out, --rejax-python is not given")
                continue
            print(f"{name}: {comparison.title}", flush=True)
            try:
                result = run_comparison(
                    comparison,
                    {"rejax": options.rejax_python},
                    options.repeats,
                    folder,
                    lambda text: print(text, flush=True),
                )
            except MeasurementFailed as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            print(show_comparison(result), flush=True)
            if options.record:
                record("speed", name, {**result, **about(), "command": f"python -m benchmarks.speed {name}"})
            failed += [name for bar in result["bars"] if not bar["met"]]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
