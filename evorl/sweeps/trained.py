"""Runs of a sweep or search: where they are, their results, and their failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from evorl.execution.session import TrainingDiverged
from evorl.ops.terminal_text import counted


class Trained(NamedTuple):
    """Result of a training.

    Attributes:
        best_return: best evaluation return; ``None`` without evaluations.
        stopped: True if the training was stopped before its end.
        folder: folder of the results; ``None`` without results.
        failures: one sentence for each failed run of a sweep or search.
    """

    best_return: float | None
    stopped: bool
    folder: Path | None = None
    failures: tuple[str, ...] = ()


class RunsFailed(ValueError):
    """Some runs of a sweep or search failed; all others are trained."""


def raise_failures(failures: Sequence[str]) -> None:
    """Raise ``RunsFailed`` if there are any failures, so that the command's exit status is not 0."""
    if failures:
        runs = counted(len(failures), "run")
        raise RunsFailed("\n  ".join([f"{runs} failed, all others were trained:", *failures]))


class RunPlace(NamedTuple):
    """Location of a run in its sweep.

    Attributes:
        root: folder of the sweep.
        name: name of the run's folder.
        resume_command: command line that resumes the sweep.
        should_stop: returns True once a stop of the sweep is requested, for instance during compilation.
    """

    root: Path
    name: str
    resume_command: str
    should_stop: Callable[[], bool]


FailureText = Callable[[Exception], str]  # the reason of a failed run in one line


class Attempt(NamedTuple):
    """Outcome of one run of a sweep or search.

    Attributes:
        trained: result of the training; ``None`` if it failed.
        failure: reason of the failure.
        diverged: True if the training failed because it diverged.
    """

    trained: Trained | None
    failure: str = ""
    diverged: bool = False


def attempt(run: Callable[[], Trained], failure_text: FailureText) -> Attempt:
    """Train one run; an error fails only this run and is printed, so that the others are trained."""
    try:
        return Attempt(run())
    except Exception as error:
        failure = failure_text(error)
        print(f"Failed: {failure}", flush=True)
        return Attempt(None, failure, isinstance(error, TrainingDiverged))
