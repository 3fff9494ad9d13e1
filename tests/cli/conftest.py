"""Commands of the command line in this process, and a finished run."""

from __future__ import annotations

import sys

import pytest

from evorl.cli import main as cli
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run, below ``<root>/ppo-cartpole/``."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "argv", ["evorl", *SMALL, f"runs_folder={root}"])
        cli.train()
    return RunFolder.latest(root)
