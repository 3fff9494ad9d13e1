"""The CSV table of a sweep."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from evorl.reports.statistics import bootstrap_interval
from evorl.sweeps.sweep_table import RETURN, Evaluations, Returns, write_evaluations, write_sweep


def evaluations_of(returns: Returns) -> Evaluations:
    """Return evaluations without other metrics."""
    return {n: {at: {RETURN: values} for at, values in of_setting.items()} for n, of_setting in returns.items()}


def test_every_setting_has_its_line(tmp_path: Path) -> None:
    settings = [{"a": 0.1, "name": None}, {"a": 0.2, "name": "x"}, {"a": 0.3, "name": "y"}]
    returns = {0: {10: [1.0, 2.0, 6.0], 20: [2.0, 3.0, 1.0]}, 1: {}, 2: {10: [1.0, math.nan, 2.0]}}
    write_sweep(tmp_path / "sweep.csv", settings, returns, 3)
    with open(tmp_path / "sweep.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["setting"] for row in rows] == ["0", "1", "2"]
    assert [(row["a"], row["name"]) for row in rows] == [("0.1", ""), ("0.2", "x"), ("0.3", "y")]
    first = rows[0]
    assert [float(first[f"seed_{i}"]) for i in range(3)] == [2.0, 3.0, 1.0]
    assert (first["timesteps"], float(first["eval_return"]), float(first["best_return"])) == ("20", 2.0, 3.0)
    assert (float(first["low"]), float(first["high"])) == pytest.approx(bootstrap_interval(np.array([2.0, 3.0, 1.0])))
    assert not any(rows[1][name] for name in ("timesteps", "eval_return", "low", "seed_0"))
    assert (rows[2]["eval_return"], rows[2]["low"], rows[2]["seed_1"], rows[2]["seed_2"]) == ("", "", "", "2.0")


def test_every_evaluation_has_its_line(tmp_path: Path) -> None:
    returns = {1: {20: [3.0, 5.0], 10: [1.0, 2.0]}, 0: {10: [math.nan, 2.0]}}
    write_evaluations(tmp_path / "evaluations.csv", evaluations_of(returns), 2)
    assert (tmp_path / "evaluations.csv").read_text().splitlines() == [
        "setting,timesteps,eval_return,seed_0,seed_1",
        "0,10,,,2.0",
        "1,10,1.5,1.0,2.0",
        "1,20,4.0,3.0,5.0",
    ]


def test_other_metrics_have_columns_named_as_in_metrics_csv(tmp_path: Path) -> None:
    evaluations = {
        0: {10: {"episode_return": [1.0, 2.0], "success": [0.5, 1.0]}},
        1: {10: {"success": [0.0, math.nan], "length": [3.0, 4.0], "episode_return": [3.0, 4.0]}},
    }
    write_evaluations(tmp_path / "evaluations.csv", evaluations, 2)
    with open(tmp_path / "evaluations.csv", newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["eval_return"], first["seed_1"]) == ("1.5", "2.0")
    assert [first[f"eval/success{end}"] for end in ("", "_seed_0", "_seed_1")] == ["0.75", "0.5", "1.0"]
    assert [first[f"eval/length{end}"] for end in ("", "_seed_0", "_seed_1")] == ["", "", ""]
    assert [second[f"eval/success{end}"] for end in ("", "_seed_0", "_seed_1")] == ["", "0.0", ""]
    assert second["eval/length"] == "3.5"


def test_the_best_is_none_of_the_untrained_policy(tmp_path: Path) -> None:
    returns = {0: {0: [500.0], 10: [20.0], 20: [10.0]}, 1: {0: [500.0]}}
    write_sweep(tmp_path / "sweep.csv", [{"a": 1}, {"a": 2}], returns, 1)
    with open(tmp_path / "sweep.csv", newline="", encoding="utf-8") as file:
        assert [row["best_return"] for row in csv.DictReader(file)] == ["20.0", ""]
