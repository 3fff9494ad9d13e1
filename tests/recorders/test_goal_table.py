"""The CSV table of goals."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from evorl.recorders.goal_table import GoalTableRecorder, goal_table
from tests.support.errors import raises_naming
from tests.support.recorded_runs import LENGTHS, NUM_EPISODES, kept_episodes, make_plan


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_each_episode_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "eval_goals.csv"
    recorder = GoalTableRecorder(path)
    recorder.start(make_plan())
    recorder.evaluation(3, 300, kept_episodes())
    recorder.close()
    rows = rows_of(path)
    assert len(rows) == NUM_EPISODES
    assert list(rows[0]) == [
        *("iterations", "timesteps", "episode", "desired_0", "desired_1", "achieved_0", "achieved_1"),
        *("start_0", "start_1", "success", "success_ever", "return", "length"),
    ]
    assert [row["episode"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["success"] for row in rows] == ["0", "1", "0", "0", "0"]
    assert [int(row["length"]) for row in rows] == LENGTHS.tolist()
    assert np.float32(rows[1]["achieved_0"]) == np.float32(0.4) == np.float32(rows[1]["desired_0"])
    assert (rows[0]["iterations"], rows[0]["timesteps"]) == ("3", "300")


def test_seeds_follow_one_another(tmp_path: Path) -> None:
    recorder = GoalTableRecorder(tmp_path / "goals.csv")
    recorder.evaluation(1, 100, kept_episodes(num_seeds=2))
    recorder.close()
    rows = rows_of(tmp_path / "goals.csv")
    assert [row["seed"] for row in rows] == ["0"] * NUM_EPISODES + ["1"] * NUM_EPISODES
    assert [row["episode"] for row in rows] == ["0", "1", "2", "3", "4"] * 2


def test_a_resume_goes_on_from_where_the_run_was(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
    for path, first in ((whole, (1, 2, 3)), (parts, (1, 2))):
        recorder = GoalTableRecorder(path)
        for iteration in first:
            recorder.evaluation(iteration, 100 * iteration, kept_episodes())
        recorder.close()
    resumed = GoalTableRecorder(parts)
    resumed.resume_at(1)
    for iteration in (2, 3):
        resumed.evaluation(iteration, 100 * iteration, kept_episodes())
    resumed.close()
    assert parts.read_bytes() == whole.read_bytes()


def test_without_goals_there_is_no_table(tmp_path: Path) -> None:
    episodes = kept_episodes().replace(goals=None)
    recorder = GoalTableRecorder(tmp_path / "goals.csv")
    recorder.evaluation(1, 100, episodes)
    assert not list(tmp_path.iterdir())
    with raises_naming(ValueError, "goals", "keep_goals=True"):
        goal_table(episodes)
