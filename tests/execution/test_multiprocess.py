"""Rank of a process among several, and the error when it loses another. ``tests/test_launch.py`` runs several."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import jax
import pytest

from evorl.execution import multiprocess
from evorl.execution.multiprocess import PROCESS_VARIABLE, ProcessInfo, ProcessLost
from evorl.sweeps.search import search_settings
from evorl.sweeps.sweep import sweep_settings
from tests.support.errors import assert_names, raises_naming

INFO = ProcessInfo(1, 4, "node0:8476", 1, 2, None, "python -m evorl.launch -n 2")
LOSS = ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")


def test_a_place_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROCESS_VARIABLE, raising=False)
    assert multiprocess.process_info() is None
    for started, shown in {
        "scripts/train.py": "python scripts/train.py",
        "/usr/bin/evorl": "evorl train",
        "/usr/bin/evorl-train": "evorl-train",
        "ipykernel_launcher.py": "evorl train",
    }.items():
        monkeypatch.setattr("sys.argv", [started])
        assert multiprocess.train_command() == shown
    for name, value in INFO.as_variable().items():
        monkeypatch.setenv(name, value)
    assert multiprocess.process_info() == INFO
    assert multiprocess.train_command() == INFO.command


def test_a_lost_process_is_reported_with_the_resume_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert multiprocess.describe_lost_process(LOSS) is None
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    message = multiprocess.describe_lost_process(LOSS, " To resume: x")
    assert message is not None
    assert message.endswith(" To resume: x")
    assert_names(message, "another process")
    assert multiprocess.describe_lost_process(ProcessLost(message)) == message
    assert multiprocess.describe_lost_process(ValueError("num_envs")) is None


def test_a_process_by_itself_has_settings_of_its_own_and_leaves_as_usual() -> None:
    multiprocess.refuse_different_settings("any")
    with raises_naming(ValueError, "kept"), multiprocess.leaving_together():
        raise ValueError("kept")


def test_sweeps_and_searches_refuse_several_processes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folders are written by one process: rows of two would be mixed."""
    for name, value in INFO.as_variable().items():
        monkeypatch.setenv(name, value)
    nothing: Any = None
    with raises_naming(ValueError, "sweep", "4 were started", "evorl train"):
        sweep_settings(nothing, nothing)
    with raises_naming(ValueError, "search", "4 were started", "evorl train"):
        search_settings(nothing, nothing, nothing, nothing)
    for name, value in dataclasses.replace(INFO, index=0, count=1).as_variable().items():
        monkeypatch.setenv(name, value)
    multiprocess.refuse_several_processes("sweep")


ENDING = """
import os, sys
from evorl.execution import multiprocess
from evorl.execution.multiprocess import ProcessInfo
from evorl.execution.runtime import prepare_runtime
with multiprocess.leaving_together():
    prepare_runtime(compilation_cache=False)
    import jax
    print(jax.device_count(), jax.process_count())
    {ending}
"""


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [("pass", 0, ""), ("sys.exit(75)", 75, ""), ("raise KeyError('why')", 1, "KeyError: 'why'")],
)
def test_one_of_several_leaves_with_a_status(ending: str, status: int, error: str) -> None:
    info = ProcessInfo(0, 1, f"127.0.0.1:{_free_port()}", 0, 1, 3, "")
    reading, writing = os.pipe()  # the end of standard input would stop the process
    process = subprocess.run(
        [sys.executable, "-c", ENDING.format(ending=ending)],
        env={**os.environ, **info.as_variable()},
        stdin=reading,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(reading)
    os.close(writing)
    assert process.returncode == status, process.stderr
    assert process.stdout == "3 1\n"
    assert process.stderr.rstrip().endswith(error)


def _free_port() -> int:
    from evorl import launch

    return launch._free_port()
