"""Outcomes of the runs of a sweep or search, in which a failed run does not stop the others."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evorl.execution.session import TrainingDiverged
from evorl.ops.terminal_text import counted
from evorl.training.start import Trained


class RunsFailed(ValueError):
    """Raised at the end of a sweep or search in which some runs failed."""


def raise_failures(failures: Sequence[str]) -> None:
    """Raise ``RunsFailed`` if there are any failures, so that the command's exit status is not 0."""
    if failures:
        runs = counted(len(failures), "run")
        raise RunsFailed("\n  ".join([f"{runs} failed, which did not stop the others:", *failures]))


FailureText = Callable[[Exception], str]  # formats the exception of a failed run as one line


class Attempt(NamedTuple):
    """Outcome of one run of a sweep or search.

    Attributes:
        trained: result of the training run; ``None`` if it failed.
        failure: reason for the failure, or a message about a full disk; otherwise empty.
        diverged: True if the training failed because it diverged.
    """

    trained: Trained | None
    failure: str = ""
    diverged: bool = False


def attempt(run: Callable[[], Trained], failure_text: FailureText) -> Attempt:
    """Train one run; print and return its error, so that the other runs can be trained; raise for a full disk."""
    try:
        return Attempt(run())
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        failure = failure_text(error)
        print(f"Failed: {failure}", flush=True)
        return Attempt(None, failure, isinstance(error, TrainingDiverged))
