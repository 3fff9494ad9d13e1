"""``python -m benchmarks.gpu``: measure on a GPU; ``--static`` only compiles, for a GPU that is described in a file."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit import KIT, Kit, describe_row
from benchmarks.gpu.page import show_side, write_gpu_page
from benchmarks.gpu.setting import SETTINGS, GpuSetting
from benchmarks.gpu.static import Compiler, compile_setting
from benchmarks.results import RESULTS
from evorl.config.names import no_such


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or compile with ``--static``; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--static", action="store_true", help="compile for a described H100; needs no GPU")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these measurements, or settings (--static)")
    parser.add_argument("--seconds", type=float, default=480.0, help="end within this many seconds (default 480)")
    parser.add_argument("--together", type=int, default=4, help="measurements compiled in parallel (default 4)")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a dry run on a CPU")
    parser.add_argument("--rows", type=Path, default=Path("gpu_measured.jsonl"), help="file to which rows are appended")
    parser.add_argument("--logs", type=Path, help="folder for the output of the processes (default: a temporary one)")
    parser.add_argument("--cuda-python", help="--static: Python of an environment with evorl and jax[cuda13]")
    parser.add_argument("--rejax-packages", metavar="FOLDER", help="folder with rejax 0.1.3 and gymnax 0.0.9")
    parser.add_argument("--limit", type=float, default=900.0, help="--static: time limit of a side, s (default 900)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results (default benchmarks/results)")
    options = parser.parse_args(arguments)
    names, noun = (SETTINGS, "setting") if options.static else (KIT, "measurement")
    for name in options.only or ():
        if name not in names:
            parser.error(no_such(noun, name, names))
    if options.static and not options.cuda_python:
        parser.error("--static needs --cuda-python: an environment with evorl and jax[cuda13].")
    return _compile(options) if options.static else _measure(options)


def _measure(options: argparse.Namespace) -> int:
    """Run the measurements; print and record a line for each side. Return 1 if one failed, else 0."""
    failed = False

    def report(row: dict[str, Any]) -> None:
        nonlocal failed
        failed |= "error" in row
        print(describe_row(row), flush=True)
        with options.rows.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")

    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kit = Kit(options.seconds, folder, options.rejax_packages, options.tiny)
        names = list(options.only or KIT)
        for start in range(0, len(names), options.together):
            if not kit.run([KIT[name] for name in names[start : start + options.together]], report):
                print(f"{names[start]} and later measurements: no time left", flush=True)
                break
    return 1 if failed else 0


def _compile(options: argparse.Namespace) -> int:
    """Compile the settings and print a line for each side. Return 1 if one failed, else 0."""
    compiler, failed = Compiler(options.cuda_python, options.rejax_packages, options.limit), False
    for name in options.only or [name for name, setting in SETTINGS.items() if setting.static]:
        setting = SETTINGS[name]
        print(f"{name}: {setting.title}", flush=True)

        def report(side: str, cost: dict[str, Any], setting: GpuSetting = setting) -> None:
            nonlocal failed
            failed |= "error" in cost
            print(f"    {side:18s} {show_side(setting, cost)}", flush=True)

        compile_setting(setting, compiler, report, options.results)
        if options.results == RESULTS:
            write_gpu_page()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
