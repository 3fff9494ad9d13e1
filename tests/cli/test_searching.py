"""Searches by Optuna over ordinary runs, from the command line."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="needs the extra optuna")

from evorl.cli import main as cli
from evorl.cli import searching
from evorl.runs.folder import RunFolder
from tests.support.command_line import SMALL

OVER = "over: {agent.clip_epsilon: {low: 0.05,high: 0.4},num_minibatches: [1,2]}"


def run(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as context:
        context.setattr(sys, "argv", ["train.py", *arguments])
        cli.train()


def table_in(folder: Path) -> list[dict[str, str]]:
    with open(folder / "search.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_trials_are_runs_and_a_stopped_search_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*SMALL, f"search={{{OVER},trials: 3}}", f"runs_folder={tmp_path / 'whole'}")
    (whole,) = (tmp_path / "whole").glob("ppo-cartpole-search/*")
    rows = table_in(whole)
    assert [row["state"] for row in rows] == ["finished"] * 3
    for row in rows:
        config = RunFolder(whole / f"trial_{int(row['trial']):04d}").load_config()
        assert str(config.agent.clip_epsilon) == row["agent.clip_epsilon"]
        assert str(config.num_minibatches) == row["num_minibatches"]
    best = max(rows, key=lambda row: float(row["best_return"]))
    told = capsys.readouterr().out
    assert f"Best of 3 settings: agent.clip_epsilon={best['agent.clip_epsilon']} " in told

    class StoppedAtOnce(RuntimeError):
        pass

    def stop(*_: object) -> None:
        raise StoppedAtOnce

    with monkeypatch.context() as context, pytest.raises(StoppedAtOnce):
        context.setattr(searching, "_write", stop)  # as a kill after the first trial
        run(*SMALL, f"search={{{OVER},trials: 3}}", f"runs_folder={tmp_path / 'cut'}")
    (cut,) = (tmp_path / "cut").glob("ppo-cartpole-search/*")
    run(f"resume={cut}")
    assert table_in(cut) == rows
    run(f"resume={cut}", "search.trials=4")
    assert len(table_in(cut)) == 4


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (f"search={{{OVER}}}", "search.trials is missing"),
        ("search={over: {},trials: 2}", "search names nothing to compare"),
        ("search={over: {agent.clip: [1]},trials: 2}", "no config key 'agent.clip'. Did you mean 'agent.clip_epsilon'"),
        (f"search={{{OVER},trial: 2}}", "key of search 'trial'. Did you mean 'trials'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    argument: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*SMALL, argument, f"runs_folder={tmp_path}")
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
