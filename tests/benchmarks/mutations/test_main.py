"""The command: its table, its summary and its exit status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import results
from benchmarks.mutations import __main__ as command
from benchmarks.mutations.trial import Outcome, TrialError
from tests.support.errors import raises_naming

NAMES = ["schedule_reversed", "ranks_reversed"]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Outcome]]:
    """Replace trials by known outcomes."""
    outcomes = {NAMES[0]: Outcome(True, "tests/a.py::test_a", 5.0), NAMES[1]: Outcome(True, "tests/b.py::test_b", 70.0)}
    monkeypatch.setattr(command, "copied_checkout", lambda: contextlib.nullcontext("copy"))
    monkeypatch.setattr(command, "try_mutation", lambda mutation, copy, limit: outcomes[mutation.name])
    monkeypatch.setattr(command, "run_tests", lambda *_, **__: Outcome(False, "", 1.0))
    return outcomes


def test_the_table_and_the_status(planted: dict[str, Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*NAMES, "--jobs", "2"]) == 0
    text = capsys.readouterr().out
    assert "| schedule_reversed |" in text
    assert "tests/a.py::test_a | 5 s |" in text
    assert "2 of 2 caught (100%), 1 within a minute (50%)" in text
    planted[NAMES[1]] = Outcome(False, "", 3.0)
    assert command.main(NAMES) == 1
    text = capsys.readouterr().out
    assert "**not caught**" in text
    assert "1 of 2 caught (50%), 1 within a minute (50%)" in text


def test_tests_that_fail_without_a_fault_are_an_error(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_tests", lambda *_, **__: Outcome(True, "tests/a.py::test_a", 1.0))
    with raises_naming(TrialError, "without any mutation", "tests/a.py::test_a"):
        command.main(NAMES)
    assert command.main([*NAMES, "--unchecked"]) == 0


def test_outcomes_are_recorded_by_name(planted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(command, "load", lambda kind: results.load(kind, tmp_path))
    monkeypatch.setattr(command, "record", lambda *x: results.record(*x, folder=tmp_path))
    command.main([NAMES[0], "--record"])
    command.main([NAMES[1], "--record"])
    trials = results.load("mutations", tmp_path)["all"]["trials"]
    assert {trial["name"]: trial["seconds"] for trial in trials} == {NAMES[0]: 5.0, NAMES[1]: 70.0}
    assert all(trial["caught"] and trial["fault"] for trial in trials)


def test_the_list_and_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert "| schedule_reversed |" in capsys.readouterr().out
    for arguments, part in ((["schedule_reverse"], "Did you mean 'schedule_reversed'?"), (["--jobs", "0"], "got 0")):
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert part in capsys.readouterr().err
