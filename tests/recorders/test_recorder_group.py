"""The recorder group forwards calls, and keeps the contract with the training loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evorl.recorders import Recorder, RecorderGroup
from tests.support.recorded_runs import make_plan, make_row


class Noting(Recorder):
    def __init__(self, calls: list, name: str, failure: Exception | None = None) -> None:
        self.calls, self.name, self.error = calls, name, failure

    def write(self, row) -> None:
        self.calls.append((self.name, "write", row["iterations"]))

    def resume_at(self, iterations: int) -> None:
        self.calls.append((self.name, "resume_at", iterations))

    def failure(self, error: Exception) -> None:
        self.calls.append((self.name, str(error)))
        if self.error:
            raise self.error

    def close(self) -> None:
        self.calls.append((self.name, "close"))
        if self.error:
            raise self.error


def test_a_group_passes_everything_on_in_order() -> None:
    calls: list = []
    group = RecorderGroup([Noting(calls, "a"), Noting(calls, "b")])
    group.start(make_plan())
    group.write(make_row(1))
    group.progress(100, 1.0, {})
    group.message("hello")
    group.failure(ValueError("no"))
    group.close()
    assert calls == [("a", "write", 1), ("b", "write", 1), ("a", "no"), ("b", "no"), ("a", "close"), ("b", "close")]


def test_all_recorders_learn_of_a_failure_and_are_closed_even_if_one_fails() -> None:
    calls: list = []
    group = RecorderGroup([Noting(calls, "a", OSError("first")), Noting(calls, "b", OSError("second"))])
    with pytest.raises(OSError, match="first"):
        group.failure(ValueError("no"))
    with pytest.raises(OSError, match="first"):
        group.close()
    assert calls == [("a", "no"), ("b", "no"), ("a", "close"), ("b", "close")]


@pytest.mark.parametrize("name", ["write", "progress", "message", "evaluation", "chart", "complete"])
def test_an_error_of_a_recorder_does_not_keep_a_call_from_the_others(name: str) -> None:
    calls: list[str] = []

    def fail(*_: object) -> None:
        raise OSError("no")

    broken, sound = Recorder(), Recorder()
    vars(broken)[name], vars(sound)[name] = fail, lambda *_: calls.append(name)
    arguments = {
        "write": [{}],
        "progress": [1, 1.0, {}],
        "message": [""],
        "evaluation": [1, 1, None],
        "chart": ["", None],
    }
    with pytest.raises(OSError, match="no"):
        getattr(RecorderGroup([broken, sound]), name)(*arguments.get(name, []))
    assert calls == [name]


def test_importing_recorders_imports_no_library() -> None:
    code = (
        "import sys, evorl; before = set(sys.modules); import evorl.recorders, evorl.runs, evorl.runs.folder;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new & {'rich', 'tensorboardX', 'matplotlib', 'wandb', 'orbax', 'omegaconf', 'tensorstore'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Emptying(Recorder):
    def write(self, row) -> None:
        row.clear()

    def progress(self, timesteps: int, steps_per_second: float, latest) -> None:
        latest.clear()


def test_a_recorder_that_changes_its_row_changes_no_other_row() -> None:
    """Recorders of users come before TensorBoard, trackers and the screen; ``latest`` belongs to the session."""
    calls: list = []
    group = RecorderGroup([Emptying(), Noting(calls, "a")])
    row, latest = make_row(1), {"timesteps": 3}
    group.write(row)
    group.progress(100, 1.0, latest)
    assert calls == [("a", "write", 1)]
    assert (row, latest) == (make_row(1), {"timesteps": 3})
