"""Reads and writes recorded results in ``benchmarks/results``, one row per line.

``speed.jsonl``, ``learning.jsonl``, ``defaults.jsonl``, ``gpu.jsonl`` and ``mutations.jsonl`` have one line per result:
settings, time, machine and versions.
``speed/<name>.jsonl`` has its readings, ``learning/<name>.jsonl`` and ``defaults/<name>.jsonl`` its learning curve,
``gpu/<name>.jsonl`` the costs of its compiled programs, ``mutations/<name>.jsonl`` the faults and the tests that
noticed them, one entry per line.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
# name of the entry of a result that is stored in a separate file
ROWS = {"speed": "readings", "learning": "curve", "defaults": "curve", "gpu": "sides", "mutations": "trials"}


def load(kind: str, folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the recorded results of a kind by name; empty without a file."""
    results = {}
    for summary in _read(folder / f"{kind}.jsonl"):
        name = summary.pop("name")
        results[name] = {**summary, ROWS[kind]: _read(folder / kind / f"{name}.jsonl")}
    return results


def record(kind: str, name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> None:
    """Write a result; replace an earlier one of the same name. Several processes may record at the same time.

    ``notes``, which explain unmet requirements and are written by hand, are preserved.
    """
    with locked(folder):
        summaries = {summary["name"]: summary for summary in _read(folder / f"{kind}.jsonl")}
        notes = summaries.get(name, {}).get("notes")
        summary = {key: value for key, value in result.items() if key != ROWS[kind]}
        summaries[name] = {"name": name, **summary, **({"notes": notes} if notes else {})}
        _write(folder / kind / f"{name}.jsonl", result[ROWS[kind]])
        _write(folder / f"{kind}.jsonl", summaries.values())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder, which is created if necessary; wait while another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file as a whole, so that no reader sees an incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)
