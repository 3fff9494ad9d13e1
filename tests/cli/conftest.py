"""A finished run of the command line."""

from __future__ import annotations

import sys

import pytest

from evorl.cli import main as cli
from evorl.runs.folder import RunFolder
from tests.support.command_line import SMALL


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run, below ``<root>/ppo-cartpole/``."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "argv", ["evorl", *SMALL, f"runs_folder={root}"])
        cli.train()
    return RunFolder.latest(root)
