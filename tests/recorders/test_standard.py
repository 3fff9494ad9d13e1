"""All recorders of an ordinary run together."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.recorders import make_recorder
from evorl.runs.folder import RunFolder
from tests.support.recorded_runs import record, record_until_killed


def test_an_ordinary_run_fills_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = RunFolder.create(tmp_path, {"seed": 1})
    record(make_recorder(folder))
    present = {path.name for path in folder.path.iterdir()}
    assert present == {
        "config.yaml",
        "metrics.csv",
        "metrics.jsonl",
        "tensorboard",
        "learning_curve.png",
        "run.log",
        "state.json",
    }
    assert "evaluation return 300.0" in capsys.readouterr().out


def test_killed_and_resumed_equals_the_whole_run(tmp_path: Path) -> None:
    whole, parts = RunFolder.create(tmp_path, {}), RunFolder.create(tmp_path, {})
    quiet = {"progress": False, "learning_curve": False, "tensorboard": False}
    record(make_recorder(whole, **quiet))
    record_until_killed(make_recorder(parts, **quiet), 8, parts.metrics_csv, parts.metrics_jsonl)
    resumed = make_recorder(parts, **quiet)
    resumed.resume_at(6)
    record(resumed, first=7)
    for name in ("metrics.csv", "metrics.jsonl"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()


def test_parts_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = RunFolder.create(tmp_path, {})
    record(make_recorder(folder, progress=False, tensorboard=False, learning_curve=False))
    assert not folder.tensorboard.exists()
    assert not folder.learning_curve.exists()
    assert capsys.readouterr().out == ""
