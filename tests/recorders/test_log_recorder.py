"""``run.log``: messages and evaluations with times, never truncated."""

from __future__ import annotations

import re
from pathlib import Path

from evorl.recorders import LogRecorder
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.recorded_runs import make_plan, record


def test_the_log_tells_the_run(tmp_path: Path) -> None:
    recorder = LogRecorder(tmp_path / "run.log")
    recorder.message("Set-up ready: 1.0 s.")
    record(recorder)
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S", line) for line in lines)
    messages = [line[21:] for line in lines]
    assert messages[0] == "Set-up ready: 1.0 s."
    assert messages[1] == "PPOWorkflow: 1,200 environment steps."
    assert messages[2].startswith("500 steps: evaluation return 150.0 ± 4.0  training return 100.0  policy_loss -0.02")
    assert len(messages) == 4


def test_a_resumed_run_writes_on(tmp_path: Path) -> None:
    record(LogRecorder(tmp_path / "run.log"), last=6)
    record(LogRecorder(tmp_path / "run.log"), first=7)
    text = (tmp_path / "run.log").read_text()
    assert "1,200 environment steps." in text
    assert "1,200 environment steps, resumed at 600." in text


def test_failures_are_raised_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_naming(RunFolderError, tmp_path / "file"):
        LogRecorder(tmp_path / "file" / "run.log").start(make_plan())
    full = LogRecorder("/dev/full")
    with raises_naming(RunFolderError, "/dev", "no space"):
        full.message("hello")


def test_the_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "run.log").symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, "run.log", "symbolic link"):
        LogRecorder(tmp_path / "run.log").message("hello")
    assert not (tmp_path / "target").exists()
