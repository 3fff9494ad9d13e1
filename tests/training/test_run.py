"""Training in a run folder, without a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.runs.folder import RunFolder
from evorl.training.run import train
from evorl.training.start import RunPlace, RunStart
from tests.support.command_line import SMALL
from tests.support.config_files import spec_of


def test_a_run_is_trained_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = RunStart(RunPlace(tmp_path, "mine"), None, "A title", [], {}, tmp_path, "Settings of mine.")
    trained = train(spec_of("agent=ppo", *SMALL), start)
    folder = RunFolder(tmp_path / "mine")
    assert (trained.folder, trained.stopped) == (folder.path, False)
    assert trained.best_return is not None
    assert folder.load_config().title == "A title"
    assert folder.log.read_text().splitlines()[0].endswith("Settings of mine.")
    assert capsys.readouterr().out.startswith(f"Results are in {folder.path} (")


def test_a_job_ends_where_its_sweep_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stopped job of a sweep prints no resume command, which is the sweep's."""
    place = RunPlace(tmp_path, "0", "evorl train resume=sweep", lambda: True)
    start = RunStart(place, None, "A title", [], {}, tmp_path)
    assert train(spec_of("agent=ppo", *SMALL), start).stopped
    assert "To resume" not in capsys.readouterr().out
