"""``metrics.jsonl``: everything, resumable."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from evorl.recorders import JsonlRecorder
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.recorded_runs import make_row, record, record_until_killed


def test_every_value_is_there_timings_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record(JsonlRecorder(path))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [make_row(i) for i in range(1, 13)]


def test_interrupted_and_resumed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record_until_killed(JsonlRecorder(path), 7, path)
    with open(path, "a") as file:
        file.write('{"iterations": 8, "tra')
    resumed = JsonlRecorder(path)
    resumed.resume_at(5)
    record(resumed, first=6)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [make_row(i) for i in range(1, 13)]


def test_values_that_are_not_finite_come_back(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "metrics.jsonl")
    recorder.write({"iterations": 1, "a": math.nan, "b": -math.inf})
    recorder.close()
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert math.isnan(row["a"])
    assert row["b"] == -math.inf


NO_ROWS = ["{", "[1]", "3", '{"a": 1}', '{"iterations": 1e999}', '{"iterations": "x"}', "[" * 100_000]


@pytest.mark.parametrize("line", NO_ROWS, ids=range(len(NO_ROWS)))
def test_a_damaged_file_is_refused_in_words_and_stays(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    record(JsonlRecorder(path), last=2)
    with path.open("a") as file:
        file.write(line + "\n")
    before = path.read_bytes()
    with raises_naming(RunFolderError, "metrics.jsonl", "corrupted", "line 3", "iteration"):
        JsonlRecorder(path).resume_at(1)
    assert path.read_bytes() == before
