"""Results are written as one row per line, and replaced by name."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.results import RESULTS, load, record

ROWS = [{"side": "small", "round": 0, "add_seconds": 1e-6}, {"side": "large", "round": 0, "add_seconds": 4e-6}]
SPEED = {"title": "Adding", "quantity": "add_seconds", "readings": ROWS}


def test_record_replaces_by_name_and_keeps_notes(tmp_path):
    record("speed", "replay_add", {**SPEED, "title": "old"}, tmp_path)
    record("speed", "recorders", {**SPEED, "title": "other"}, tmp_path)
    path = tmp_path / "speed.jsonl"
    first, other = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "notes": "Memory is slow."}), other]), encoding="utf-8")
    record("speed", "replay_add", SPEED, tmp_path)
    assert load("speed", tmp_path) == {
        "replay_add": {**SPEED, "notes": "Memory is slow."},
        "recorders": {**SPEED, "title": "other"},
    }


def test_rows_stand_one_a_line(tmp_path):
    record("speed", "replay_add", SPEED, tmp_path)
    lines = (tmp_path / "speed" / "replay_add.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    (summary,) = (tmp_path / "speed.jsonl").read_text("utf-8").splitlines()
    assert json.loads(summary) == {"name": "replay_add", "title": "Adding", "quantity": "add_seconds"}


def test_processes_that_record_at_the_same_time_lose_no_result(tmp_path):
    write = "; ".join(
        [
            "import sys; from pathlib import Path; from benchmarks.results import record",
            "[record('speed', f'{sys.argv[2]}_{i}', {'readings': []}, Path(sys.argv[1])) for i in range(100)]",
        ]
    )
    names = ("a", "b", "c")
    processes = [subprocess.Popen([sys.executable, "-c", write, tmp_path, name]) for name in names]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert load("speed", tmp_path).keys() == {f"{name}_{i}" for name in names for i in range(100)}
    assert not list(tmp_path.rglob("*.partial"))


def test_nothing_recorded_is_no_result(tmp_path):
    assert load("learning", tmp_path) == {}


def test_no_file_of_results_is_large_or_left_over():
    for kind in ("speed", "learning", "defaults", "gpu", "mutations"):
        assert {path.stem for path in (RESULTS / kind).iterdir()} == load(kind).keys()
    for path in RESULTS.rglob("*.jsonl"):
        most = 1_000_000 if path.name == "learning.jsonl" else 200_000  # each result holds its composed settings
        assert path.stat().st_size < most, path
