"""Compiles every side of the settings for a described GPU, each in a process with a time limit, and records them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import GpuSetting, Side
from benchmarks.machine import about
from benchmarks.results import load, record

ROOT = Path(__file__).resolve().parents[2]


class Compiler:
    """Compiles sides in child processes.

    Args:
        python: interpreter of an environment with evorl and ``jax[cuda13]``.
        rejax_packages: folder with rejax and its packages; ``None`` omits rejax.
        limit: time limit of one side in seconds.
    """

    def __init__(self, python: str, rejax_packages: str | None = None, limit: float = 900.0) -> None:
        self.python, self.rejax_packages, self.limit = python, rejax_packages, limit

    def leaves_out(self, side: Side) -> bool:
        """Return True if the packages of the side are missing."""
        return side.program == "rejax" and self.rejax_packages is None

    def compile(self, setting: GpuSetting, side: Side) -> dict[str, Any]:
        """Return the cost of a side with its versions; with the key ``error`` instead if it failed."""
        paths = [self.rejax_packages] * (side.program == "rejax") + [str(ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        settings, turns = json.dumps(side.settings), str(setting.unknown_turns)
        command = [self.python, "-m", "benchmarks.gpu.sides", side.program, settings, turns]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self.limit, env=environment, cwd=ROOT, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not compiled within {self.limit:.0f} s"}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return {"error": lines[-1][:300]}
        return json.loads(done.stdout.splitlines()[-1])


def compile_setting(
    setting: GpuSetting, compiler: Compiler, report: Callable[[str, dict[str, Any]], None], folder: Path
) -> dict[str, Any]:
    """Compile the sides of a setting, and record each immediately.

    Args:
        setting: setting to compile.
        compiler: compiles one side.
        report: called with the name of each side and its cost.
        folder: folder of results. Recorded costs of sides that are skipped now are kept.

    Returns:
        The recorded result.
    """
    earlier = {row["side"]: row for row in load("gpu", folder).get(setting.name, {}).get("sides", [])}
    rows = {name: earlier[name] for name in setting.sides if name in earlier}
    result: dict[str, Any] = {}
    for name, side in setting.sides.items():
        if compiler.leaves_out(side):
            continue
        rows[name] = {"side": name, **compiler.compile(setting, side)}
        report(name, rows[name])
        result = {
            "title": setting.title,
            **about(),
            "command": f"python -m benchmarks.gpu --static --only {setting.name}",
            "sides": [rows[name] for name in setting.sides if name in rows],
        }
        record("gpu", setting.name, result, folder)
    return result
