"""Runs of a sweep: an error fails one run, and failed runs are an error at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.execution.session import TrainingDiverged
from evorl.sweeps.trained import Attempt, RunsFailed, attempt, raise_failures
from evorl.training.start import Trained


def _raise(error: BaseException) -> Trained:
    raise error


def test_an_error_fails_one_run_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    trained = Trained(1.0, False, Path("a"))
    assert attempt(lambda: trained, str) == Attempt(trained)
    assert attempt(lambda: _raise(ValueError("no such thing")), str) == Attempt(None, "no such thing")
    assert attempt(lambda: _raise(TrainingDiverged("nan")), str) == Attempt(None, "nan", diverged=True)
    assert capsys.readouterr().out == "Failed: no such thing\nFailed: nan\n"
    with pytest.raises(KeyboardInterrupt):
        attempt(lambda: _raise(KeyboardInterrupt()), str)


def test_failures_are_counted_and_named() -> None:
    raise_failures([])
    with pytest.raises(RunsFailed) as raised:
        raise_failures(["a=1: no", "a=2: no"])
    assert str(raised.value) == "2 runs failed, which did not stop the others:\n  a=1: no\n  a=2: no"
