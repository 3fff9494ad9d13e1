"""CSV files: incomplete lines, replacement, and reopening."""

from __future__ import annotations

import csv
import errno
import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from evorl.recorders import CsvRecorder, JsonlRecorder, row_file
from evorl.recorders.row_file import RowFile, as_number
from evorl.runs import files
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.recorded_runs import NUM_ITERATIONS, make_plan, make_row, record, record_until_killed


def test_lines_are_appended_and_replaced(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "deep" / "rows.txt")
    assert file.lines() == []
    file.append("a")
    file.append("b")
    file.replace(["c", *file.lines()])
    file.append("d")
    file.close()
    assert file.lines() == ["c", "a", "b", "d"]
    assert [path.name for path in file.path.parent.iterdir()] == ["rows.txt"]


def test_a_torn_line_is_cut_off_when_opening(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("whole\nto")
    file = RowFile(path)
    assert file.lines() == ["whole"]
    file.open()
    file.append("next")
    file.close()
    assert path.read_text() == "whole\nnext\n"


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("")
    file = RowFile(tmp_path / "rows.txt")
    file.open()
    file.append("a")
    file.close()
    assert file.lines() == ["a"]


def test_numbers_keep_their_kind() -> None:
    assert [repr(as_number("x", value)) for value in (1, 2.0, True, 2**70)] == ["1", "2.0", "1", str(2**70)]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious\nand torn")
    file = RowFile(tmp_path / "rows.txt")
    file.path.symlink_to(target)
    for write in (file.append, lambda line: file.replace([line])):
        with raises_naming(RunFolderError, "rows.txt", "symbolic link"):
            write("a")
    file.close()
    assert target.read_text() == "precious\nand torn"


@pytest.fixture
def uninterrupted(tmp_path: Path) -> bytes:
    record(CsvRecorder(tmp_path / "whole.csv"))
    return (tmp_path / "whole.csv").read_bytes()


def test_values_come_back_bit_for_bit(tmp_path: Path, uninterrupted: bytes) -> None:
    rows = list(csv.DictReader(uninterrupted.decode().splitlines()))
    assert len(rows) == NUM_ITERATIONS
    for i, row in enumerate(rows, start=1):
        read = {name: float(text) for name, text in row.items() if text}
        assert read == {name: value for name, value in make_row(i).items() if not name.startswith("time/")}


def test_columns_stand_in_the_order_of_their_first_appearance(uninterrupted: bytes) -> None:
    header = uninterrupted.decode().splitlines()[0].split(",")
    assert header[:3] == ["iterations", "timesteps", "train/policy_loss"]
    assert header[-2:] == ["eval/episode_return", "eval/episode_return_std"]
    assert not any(name.startswith("time/") for name in header)


@pytest.mark.parametrize(
    ("checkpoint", "killed_at"), [(c, k) for k in (4, 7, 12) for c in (0, 2, 4, 5, 7, 12) if c <= k]
)
def test_interrupted_and_resumed_is_the_same_file(
    tmp_path: Path, uninterrupted: bytes, checkpoint: int, killed_at: int
) -> None:
    path = tmp_path / "metrics.csv"
    record_until_killed(CsvRecorder(path), killed_at, path)
    resumed = CsvRecorder(path)
    resumed.resume_at(checkpoint)
    record(resumed, first=checkpoint + 1)
    assert path.read_bytes() == uninterrupted


def test_a_torn_last_line_is_dropped(tmp_path: Path, uninterrupted: bytes) -> None:
    path = tmp_path / "metrics.csv"
    record(CsvRecorder(path), last=6)
    with open(path, "ab") as file:
        file.write(b"7,700,-0.01")
    resumed = CsvRecorder(path)
    resumed.resume_at(6)
    record(resumed, first=7)
    assert path.read_bytes() == uninterrupted


def test_starting_on_an_existing_file_never_truncates_it(tmp_path: Path, uninterrupted: bytes) -> None:
    path = tmp_path / "metrics.csv"
    record(CsvRecorder(path), last=8)
    record(CsvRecorder(path), first=9)
    assert path.read_bytes() == uninterrupted


def test_resume_without_a_file_is_nothing(tmp_path: Path) -> None:
    CsvRecorder(tmp_path / "metrics.csv").resume_at(3)
    assert not (tmp_path / "metrics.csv").exists()


def test_rows_reach_the_disk_when_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    record_until_killed(CsvRecorder(path), 2, path)
    assert len(path.read_text().splitlines()) == 3


def test_values_that_are_not_finite_and_odd_types(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "metrics.csv")
    recorder.start(make_plan())
    recorder.write(
        {"iterations": 1, "a,b": math.nan, "c": math.inf, "d": np.float32(0.1), "e": True, "f": jnp.int32(7)}
    )
    recorder.close()
    assert (tmp_path / "metrics.csv").read_text() == ('iterations,"a,b",c,d,e,f\n1,nan,inf,0.10000000149011612,1,7\n')
    resumed = CsvRecorder(tmp_path / "metrics.csv")
    resumed.resume_at(1)
    resumed.write({"iterations": 2, "a,b": 0.5, "g": 1})
    resumed.close()
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert rows[0]["a,b"] == "nan"
    assert (rows[0]["g"], rows[1]["a,b"], rows[1]["g"]) == ("", "0.5", "1")


def test_what_is_no_number_is_refused_in_words(tmp_path: Path) -> None:
    recorder = CsvRecorder(tmp_path / "metrics.csv")
    for value in (np.zeros(3), "text", None):
        with raises_naming(TypeError, "numbers", "'loss'"):
            recorder.write({"iterations": 1, "loss": value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "no space"), (errno.EROFS, "read-only")])
def test_a_full_or_read_only_disk_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    path = tmp_path / "metrics.csv"
    recorder = CsvRecorder(path)
    record(recorder, last=3)
    before = path.read_bytes()

    def fail(path: Path, mode: str = "w") -> None:
        raise OSError(number, "cannot")

    with monkeypatch.context() as patch:
        for module in (row_file, files):
            patch.setattr(module, "open_to_write", fail)
        with raises_naming(RunFolderError, tmp_path, reason):
            CsvRecorder(path).start(make_plan())
        with raises_naming(RunFolderError, tmp_path, reason):  # a new column rewrites the file
            recorder.write({"iterations": 4, "new": 1.0})
    assert path.read_bytes() == before


def test_a_row_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    recorder = CsvRecorder("/dev/full")  # every write fails because the disk is full
    with raises_naming(RunFolderError, "/dev", "no space"):
        recorder._file.append("1,2,3")
    recorder.close()


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        (b"\n2,", b"\n2;", ("line 3", "5 numbers")),
        (b"\n2,", b"\n?,", ("line 3", "5 numbers")),
        (b",-0.05,", b",-0x05,", ("line 3", "5 numbers")),
        (b"\n2,", b"\n\xff,", ("start byte",)),
        (b"iterations", b"iterationz", ("'iterations'",)),
    ],
)
def test_a_damaged_file_is_refused_in_words_and_stays(
    tmp_path: Path, before: bytes, after: bytes, parts: tuple[str, ...]
) -> None:
    path = tmp_path / "metrics.csv"
    record(CsvRecorder(path), last=2)
    assert before in path.read_bytes()
    damaged = path.read_bytes().replace(before, after, 1)
    path.write_bytes(damaged)
    with raises_naming(RunFolderError, "metrics.csv", "corrupted", *parts):
        CsvRecorder(path).resume_at(2)
    assert path.read_bytes() == damaged


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
def test_a_damaged_line_of_json_is_refused_in_words_and_stays(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    record(JsonlRecorder(path), last=2)
    with path.open("a") as file:
        file.write(line + "\n")
    before = path.read_bytes()
    with raises_naming(RunFolderError, "metrics.jsonl", "corrupted", "line 3", "iteration"):
        JsonlRecorder(path).resume_at(1)
    assert path.read_bytes() == before
