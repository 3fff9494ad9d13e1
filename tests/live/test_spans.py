"""Spans of several processes as one file."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path

import pytest

from evorl.live.spans import Spans, merge_spans
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming


def work(folder: Path, process: str, name: str) -> None:
    spans = Spans(folder, process)

    @spans.instrumented
    def push(number: int) -> int:
        time.sleep(0.002)
        return number

    assert [push(i) for i in range(3)] == [0, 1, 2]
    with spans.span(name, steps=64):
        time.sleep(0.002)
    spans.close()


def test_processes_in_one_file(tmp_path: Path) -> None:
    started = time.time() * 1e6
    processes = [
        multiprocessing.get_context("spawn").Process(target=work, args=(tmp_path / "profile", f"worker {i}", "update"))
        for i in range(1)
    ]
    for process in processes:
        process.start()
    work(tmp_path / "profile", "server", "update")
    for process in processes:
        process.join()
        assert process.exitcode == 0
    merged = json.loads(merge_spans(tmp_path / "profile").read_text())
    complete = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    assert sorted(event["name"] for event in complete) == ["push"] * 6 + ["update"] * 2
    assert len({event["pid"] for event in complete}) == 2
    assert all(event["dur"] >= 2000 and started <= event["ts"] <= time.time() * 1e6 for event in complete)
    assert [event["args"] for event in complete if event["name"] == "update"] == [{"steps": 64}] * 2
    named = {event["args"]["name"] for event in merged["traceEvents"] if event["name"] == "process_name"}
    assert named == {"server", "worker 0"}


def test_many_from_threads_with_errors_and_a_torn_line(tmp_path: Path) -> None:
    spans = Spans(tmp_path)

    def many() -> None:
        for _ in range(300):
            with spans.span("act"):
                pass

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(KeyError), spans.span("fails"):
        raise KeyError("a")
    spans.close()
    (piece,) = tmp_path.glob("spans-*.jsonl")
    with piece.open("a") as file:
        file.write('{"name": "torn')
    names = [event["name"] for event in json.loads(merge_spans(tmp_path).read_text())["traceEvents"]]
    assert (names.count("act"), names.count("fails"), names.count("process_name"), len(names)) == (1200, 1, 1, 1202)


def test_without_a_folder_nothing_is_measured(tmp_path: Path) -> None:
    spans = Spans(None)
    assert spans.instrumented(work) is work
    with spans.span("update"):
        pass
    spans.close()
    assert list(tmp_path.iterdir()) == []
    assert json.loads(merge_spans(tmp_path / "empty").read_text())["traceEvents"] == []
    (tmp_path / "empty/trace.json").unlink()
    (tmp_path / "empty/trace.json").symlink_to(tmp_path / "precious")
    with raises_naming(RunFolderError, "trace.json", "symbolic link"):
        merge_spans(tmp_path / "empty")
