"""Recorder of ``eval_goals.csv``: a row per evaluation episode, with its goal and outcome."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evorl.metrics import EvaluationMetrics
from evorl.recorders.row_file import CsvRecorder
from evorl.runs.recorder import Recorder, RunPlan

GOALS = ("desired", "achieved", "start")  # columns of goals, in this order


class GoalTableRecorder(Recorder):
    """Appends a row per evaluation episode; a resumed run first removes the rows after its checkpoint.

    Args:
        path: path of the table.

    Raises:
        RunFolderError: the disk is full or read-only, or the existing file is corrupted.
    """

    def __init__(self, path: Path | str) -> None:
        self._table = CsvRecorder(path)

    def resume_at(self, iterations: int) -> None:
        self._table.resume_at(iterations)

    def start(self, plan: RunPlan) -> None:
        self._table.start(plan)

    def evaluation(self, iterations: int, timesteps: int, episodes: EvaluationMetrics) -> None:
        if episodes.goals is None:
            return
        seeds = () if np.ndim(episodes.episode_returns) == 1 else range(len(episodes.episode_returns))
        table = goal_table(episodes)
        for row in range(len(table["return"])):
            values: dict[str, float | int] = {"iterations": iterations, "timesteps": timesteps}
            if seeds:
                values["seed"] = row // (len(table["return"]) // len(seeds))
            values["episode"] = row % (len(table["return"]) // max(len(seeds), 1))
            for name, column in table.items():
                cell = column[row].tolist()
                values |= {f"{name}_{i}": x for i, x in enumerate(cell)} if isinstance(cell, list) else {name: cell}
            self._table.write(values)

    def close(self) -> None:
        self._table.close()


def goal_table(episodes: EvaluationMetrics) -> dict[str, np.ndarray]:
    """Return columns for N episodes of all seeds: ``GOALS`` ``[N, G]``; success, success_ever, return, length ``[N]``.

    Raises:
        ValueError: the goals of these episodes were not recorded.
    """
    goals = episodes.goals
    if goals is None or episodes.success_at_end is None or episodes.success_ever is None:
        raise ValueError("these episodes have no goals: evaluate an environment with goals, with keep_goals=True.")
    outcomes = {
        "success": np.asarray(episodes.success_at_end, np.int32),
        "success_ever": np.asarray(episodes.success_ever, np.int32),
        "return": np.asarray(episodes.episode_returns),
        "length": np.asarray(episodes.episode_lengths),
    }
    table = {name: np.asarray(goals[name]).reshape(-1, goals[name].shape[-1]) for name in GOALS}
    return table | {name: column.reshape(-1) for name, column in outcomes.items()}
