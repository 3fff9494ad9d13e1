"""Commands of the command line in this process, and a finished run."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from evorl.runs.folder import RunFolder
from tests.support.command_line import SMALL


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command in this process: what it printed, and its error if it failed."""

    def run(command, *arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["evorl", *arguments])
        try:
            command()
        except SystemExit as end:
            if end.code != 1:
                raise
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run


@pytest.fixture
def trained(train_once: Callable[..., RunFolder]) -> RunFolder:
    """A finished run, below ``<root>/ppo-cartpole/``."""
    return train_once(*SMALL)
