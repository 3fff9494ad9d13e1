"""Optuna searches over ordinary runs, from the command line."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="needs the extra optuna")

from evorl.cli import main as cli
from evorl.runs.folder import RunFolder
from evorl.sweeps import search
from tests.support.command_line import SMALL
from tests.support.errors import missing_parts

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
    output = capsys.readouterr().out
    assert f"Best of 3 settings: agent.clip_epsilon={best['agent.clip_epsilon']} " in output

    class StoppedAtOnce(RuntimeError):
        pass

    def stop(*_: object) -> None:
        raise StoppedAtOnce

    with monkeypatch.context() as context, pytest.raises(StoppedAtOnce):
        context.setattr(search, "_write", stop)  # a kill after the first trial
        run(*SMALL, f"search={{{OVER},trials: 3}}", f"runs_folder={tmp_path / 'cut'}")
    (cut,) = (tmp_path / "cut").glob("ppo-cartpole-search/*")
    run(f"resume={cut}")
    assert table_in(cut) == rows
    run(f"resume={cut}", "search.trials=4")
    assert len(table_in(cut)) == 4


class Killed(BaseException):
    """Ends a command immediately, like SIGKILL."""


def _kill(*_: object, **__: object) -> None:
    raise Killed


def _half_written(folder: Path) -> None:
    (folder / "config.yaml").write_text("agent: {clip_eps")


# For each point, the failing function and the later change to the trial's folder.
POINTS = {
    "before the first trial": ("evorl.sweeps.optuna_study.OptunaStudy.next_trial", None),
    "before a trial's folder": ("evorl.sweeps.search._run_of", None),
    "in a folder without config": ("evorl.runs.folder._as_yaml", None),
    "with a config and no checkpoint": ("evorl.training.run.make_recorder", None),
    "with a half-written config": ("evorl.training.run.make_recorder", _half_written),
    "before the first iteration": ("evorl.workflows.workflow.Workflow.learn", None),
    "with metrics and no checkpoint": ("evorl.runs.checkpointer.RunCheckpointer.save", None),
    "after the training": ("evorl.sweeps.optuna_study.OptunaStudy.end", None),
    "before the table": ("evorl.recorders.row_file.RowFile.replace", None),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    root = tmp_path_factory.mktemp("search")
    run(*SMALL, f"search={{{OVER},trials: 2}}", f"runs_folder={root}")
    (whole,) = root.glob("ppo-cartpole-search/*")
    return table_in(whole)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_search_goes_on_to_the_same_table(
    point: str, undisturbed: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, damage = POINTS[point]
    run(*SMALL, f"search={{{OVER},trials: 1}}", f"runs_folder={tmp_path}")
    (folder,) = tmp_path.glob("ppo-cartpole-search/*")
    with monkeypatch.context() as context, pytest.raises(Killed):
        context.setattr(target, _kill)
        run(f"resume={folder}", "search.trials=2")
    if damage is not None:
        damage(folder / "trial_0001")
    run(f"resume={folder}", "search.trials=2")
    assert table_in(folder) == undisturbed
    trials = {row["trial"] for row in table_in(folder)}
    assert trials == {"0", "1"}


def test_two_processes_cannot_go_on_with_one_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from evorl.runs.run_state import HeldState

    run(*SMALL, f"search={{{OVER},trials: 1}}", f"runs_folder={tmp_path}")
    (folder,) = tmp_path.glob("ppo-cartpole-search/*")
    held = HeldState(folder / "state.json")
    held.hold()
    with pytest.raises(SystemExit):
        run(f"resume={folder}", "search.trials=2")
    held.release()
    assert "is already in training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        (f"search={{{OVER}}}", ("search.trials", "missing")),
        ("search={over: {},trials: 2}", ("search", "no values")),
        ("search={over: {agent.clip: [1]},trials: 2}", ("'agent.clip'", "'agent.clip_epsilon'")),
        (f"search={{{OVER},trial: 2}}", ("search", "'trial'", "'trials'")),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    argument: str, parts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*SMALL, argument, f"runs_folder={tmp_path}")
    assert not missing_parts(capsys.readouterr().err, *parts)
    assert not list(tmp_path.iterdir())
