"""The examples run, each for a few hundred steps, and are as short as claimed."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
SHORT: dict[str, dict[str, Any]] = {
    "dqn_cartpole": {"rollouts": 50, "eval_every": 25, "warm_up": 100},
    "ppo_cartpole": {"rollouts": 2, "eval_every": 1},
    "sac_maze": {"total_timesteps": 1440},
    "td3_pendulum": {"rollouts": 50, "eval_every": 50, "warm_up": 100},
}
RETURNS = {"cartpole": (8.0, 500.0), "maze": (0.0, 1.0), "pendulum": (-2000.0, 0.0)}  # success rate for the maze


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    mean_return = module.train(**SHORT[path.stem])
    low, high = RETURNS[path.stem.partition("_")[2]]
    assert math.isfinite(mean_return)
    assert low <= mean_return <= high
    assert "loss" in capsys.readouterr().out  # trained and printed the loss
    assert len(path.read_text("utf-8").splitlines()) <= 120


def test_every_example_is_tried() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(SHORT)
