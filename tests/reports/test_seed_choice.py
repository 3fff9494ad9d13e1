"""The seed of a run, selected by its recorded evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.config.values import seed_choice
from evorl.recorders.row_file import CsvRecorder
from evorl.reports.seed_choice import choose_seed
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming

# Timesteps, and the returns of three seeds.
EVALUATIONS = [(0, (9.0, 1.0, 1.0)), (100, (1.0, 5.0, 2.0)), (200, (1.0, 2.0, 3.0)), (300, (float("nan"), -4.0, -5.0))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorder = CsvRecorder(RunFolder(tmp_path).metrics_csv)
    for timesteps, returns in EVALUATIONS:
        row = {f"eval/episode_return_seed_{i}": value for i, value in enumerate(returns)}
        recorder.write({"iterations": timesteps, "timesteps": timesteps, "eval/episode_return": 0.0, **row})
        recorder.write({"iterations": timesteps + 50, "timesteps": timesteps + 50, "train/loss": 1.0})
    recorder.close()
    return tmp_path


@pytest.mark.parametrize(("timesteps", "number"), [(100, 1), (199, 1), (200, 2), (250, 2), (300, 1), (10**9, 1)])
def test_the_best_of_the_last_evaluation_is_chosen(folder: Path, timesteps: int, number: int) -> None:
    choice = choose_seed(folder, 3, timesteps)
    assert choice.number == number
    assert f"seed_number={number} of 3 seeds" in choice.description
    assert "best by evaluation" in choice.description


def test_the_untrained_policy_decides_nothing(folder: Path) -> None:
    choice = choose_seed(folder, 3, 99)
    assert choice.number == 0
    assert "no evaluations of single seeds" in choice.description


def test_without_readable_metrics_it_is_the_first(folder: Path, tmp_path: Path) -> None:
    assert choose_seed(tmp_path / "elsewhere", 2, 100).number == 0
    RunFolder(folder).metrics_csv.write_text("timesteps,a\n1\n2,b\n", encoding="utf-8")
    assert choose_seed(folder, 3, 200).number == 0


def test_a_number_is_taken_and_one_seed_needs_no_choice(folder: Path) -> None:
    assert choose_seed(folder, 3, 200, 1) == (1, "seed_number=1 of 3 seeds")
    assert choose_seed(folder, None, 200) == (0, "")
    assert [seed_choice(value) for value in ("best", 2, "2")] == ["best", 2, 2]
    for value in ("first", -1, True, 1.0, None, "-1"):
        with raises_naming(ValueError, "seed_number", "best"):
            seed_choice(value)
