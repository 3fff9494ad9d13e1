"""Optuna searches over ordinary runs, from the command line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="needs the extra optuna")

from evorl.cli import main as cli
from evorl.reports.recorded_run import find_runs
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.sweeps import search
from evorl.sweeps.search_settings import SearchSettings
from evorl.training.preparation import check_build
from evorl.training.start import RunPlace, RunStart, Trained
from tests.support.command_line import SMALL
from tests.support.config_files import spec_of
from tests.support.errors import missing_parts, raises_naming
from tests.support.run_folders import make_run

Train = Callable[[RunSpec, RunPlace], Trained]
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
    "in a folder without config": ("evorl.runs.folder.write_atomically", None),
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
    first = [(run.starts[0]["agent"], run.starts[0]["command"], run.title) for run in find_runs(folder)]
    assert len(first) == 2, "each trial counts once"
    assert first[0] == first[1], "its agent and its command are those of the search"


def test_two_processes_cannot_go_on_with_one_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from evorl.runs.run_state import HeldState

    run(*SMALL, f"search={{{OVER},trials: 1}}", f"runs_folder={tmp_path}")
    (folder,) = tmp_path.glob("ppo-cartpole-search/*")
    held = HeldState(folder / "state.json")
    held.hold()
    with pytest.raises(SystemExit):
        run(f"resume={folder}", "search.trials=2")
    held.release()
    assert "is already being trained" in capsys.readouterr().err


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


def _search_of_fakes(
    folder: Path, trials: int, monkeypatch: pytest.MonkeyPatch, train: Train | None = None
) -> tuple[Trained, list[int]]:
    """Search with trainings that only report evaluations; return the result, and the steps that each trial trained."""
    lengths: list[int] = []

    def train_constant(spec: RunSpec, place: RunPlace) -> Trained:
        score = 10.0 - len(lengths) if len(lengths) < 6 else 20.0
        lengths.append(0)
        for timesteps in range(100, 600, 100):
            lengths[-1] = timesteps
            if place.judge(timesteps, score) is not None:
                break
        return Trained(score, False, place.root / str(place.name))

    monkeypatch.setattr(search, "check_build", lambda _: None)
    workflow = {"workflow": "a.B", "discount": 0.9, "eval_interval": 100, "total_timesteps": 500}
    over = {"over": {"discount": [0.5, 0.9]}, "trials": trials, "pruner": "median"}
    resumed = RunFolder(folder) if folder.exists() else None
    start = RunStart(RunPlace(folder.parent, folder.name), resumed, "search", [], {}, Path())
    spec = RunSpec.from_config({**workflow, "search": over})
    return search.search_settings(spec, start, train or train_constant, str), lengths


def test_a_pruned_trial_is_neither_a_failure_nor_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, lengths = _search_of_fakes(tmp_path / "search", 6, monkeypatch)
    assert lengths == [500] * 5 + [100]  # Optuna's median pruner waits for five complete trials
    assert trained == Trained(10.0, False, tmp_path / "search")
    states = [(row["state"], row["best_return"], row["failure"]) for row in table_in(tmp_path / "search")]
    assert states == [*(("finished", f"{10.0 - i}", "") for i in range(5)), ("pruned", "5.0", "")]
    assert "Best of 6 settings (1 pruned)" in capsys.readouterr().out
    again, lengths = _search_of_fakes(tmp_path / "search", 7, monkeypatch)
    assert len(lengths) == 1
    assert again.best_return == 10.0
    assert [row["state"] for row in table_in(tmp_path / "search")][:6] == [state for state, *_ in states]


@pytest.mark.parametrize("total", [500, 600])
def test_a_trial_that_trained_to_its_end_is_finished_although_it_is_worse(
    total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pruner only decides at its last evaluation; the trial keeps its best return, which may be the best of all."""

    def train(spec: RunSpec, place: RunPlace) -> Trained:
        last = 1.0 if place.name == "trial_0005" else 10.0
        assert not any(place.judge(timesteps, 0.0) for timesteps in range(100, 500, 100))
        (folder := RunFolder(place.root / str(place.name))).path.mkdir()
        folder.state.write_text(json.dumps({"state": "finished", "total_timesteps": total}))
        assert (place.judge(500, last) is None) == (last == 10.0 or total == 500)
        return Trained(30.0 if last == 1.0 else last, False, folder.path)

    trained, _ = _search_of_fakes(tmp_path / "search", 6, monkeypatch, train)
    row = table_in(tmp_path / "search")[5]
    assert (row["state"], row["best_return"]) == (("finished", "30.0") if total == 500 else ("pruned", "1.0"))
    assert trained.best_return == (30.0 if total == 500 else 10.0)


def test_all_trials_start_from_the_run_that_was_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_source(name: str) -> RunFolder:
        folder = make_run(tmp_path, name, [[1.0]])
        (folder.checkpoints / "1").mkdir(parents=True)
        (folder.checkpoints / "1" / "manifest.json").write_text("{}")
        return folder

    def train(spec: RunSpec, place: RunPlace) -> Trained:
        sources.append(spec.init_from.run)
        make_source(f"search/{place.name}")
        return Trained(1.0, False, place.root / str(place.name))

    sources: list[str | None] = []
    monkeypatch.setattr(search, "check_build", lambda _: None)
    source = make_source("source")
    config = {"workflow": "a.B", "discount": 0.9, "eval_interval": 100, "total_timesteps": 500, "init_from": "latest"}
    config |= {"runs_folder": str(tmp_path), "search": {"over": {"discount": [0.5, 0.9]}, "trials": 3}}
    start = RunStart(RunPlace(tmp_path, "search"), None, "search", [], {}, Path())
    search.search_settings(RunSpec.from_config(config), start, train, str)
    assert sources == [str(source.path)] * 3
    config = RunFolder(tmp_path / "search").load_config(trust=True)
    assert config.init_from.run == str(source.path)  # also for a resume


@pytest.mark.parametrize(
    ("over", "low", "parts"),
    [
        ("num_envs: {low: 4,high: 16}", 4, ()),
        ("num_envs: {low: 4,high: 16,scale: log}", 4, ()),
        ("discount: {low: 0,high: 1}", 0.0, ()),
        ("num_envs: {low: 4.0,high: 16}", None, ("search.over.num_envs", "integer", "list the valid ones")),
        ("num_minibatches: {low: 1,high: 8}", None, ("search.over.num_minibatches: 3 ", "list the valid ones")),
    ],
)
def test_whole_numbers_are_drawn_for_settings_that_need_them(
    over: str, low: float | None, parts: tuple[str, ...]
) -> None:
    small = [word for word in SMALL if not word.startswith(("num_minibatches", "num_envs"))]
    spec = spec_of(*small, "num_envs=8", "num_minibatches=1", f"search={{over: {{{over}}},trials: 2}}")
    if low is None:
        with raises_naming(ValueError, *parts):
            search.check_search(spec, search.check_build)
        return
    (bounds,) = search.check_search(spec, search.check_build).over.values()
    assert (type(bounds["low"]), type(bounds["high"]), bounds["low"]) == (type(low), type(low), low)


def test_a_search_varies_settings_of_sections_that_a_sweep_in_one_program_ignores() -> None:
    actors = "actors={kind: inline, count: 2, mode: async, max_lag: 8}"
    over = "search={over: {actors.max_lag: [1,4], evaluation.goal_cells: [2,5]}, trials: 2}"
    spec, built = spec_of("agent=impala", *SMALL, actors, over), []
    search.check_search(spec, built.append)
    assert {(x.actors["max_lag"], x.evaluation.goal_cells) for x in built} == {(1, 2), (4, 2), (1, 5)}
    assert (spec.actors["max_lag"], spec.evaluation.goal_cells) == (8, 3)


def test_a_search_checks_its_recording_before_the_first_trial() -> None:
    recorded = ("agent=td3_bc", "env=pendulum", "replay.load=nowhere/recorded", "devices=1")
    spec = spec_of(*recorded, "search={over: {discount: [0.9]},trials: 1}")
    with raises_naming(ValueError, "search.over.discount", "nowhere/recorded", "evorl save-replay"):
        search.check_search(spec, check_build)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"pruner": "medain"}, ("search.pruner", "'medain'", "'median'")),
        ({"pruner": 3}, ("search.pruner", "3", "hyperband")),
        ({"prune": "median"}, ("key of search", "'prune'", "'pruner'")),
        ({"pruner": "median", "eval_interval": 300}, ("search.pruner=median", "eval_interval=300")),
        ({"pruner": "hyperband", "eval_interval": 0}, ("search.pruner=hyperband", "eval_interval=0")),
        ({"pruner": "hyperband", "eval_interval": None}, ("search.pruner=hyperband", "eval_interval=0")),
    ],
)
def test_a_wrong_pruner_is_refused_before_the_search(changes: dict, parts: tuple[str, ...]) -> None:
    settings = {"over": {"discount": [0.5, 0.9]}, "trials": 2, **changes}
    interval = settings.pop("eval_interval", 100)
    config = {"workflow": "a.B", "discount": 0.9, "eval_interval": interval, "total_timesteps": 500}
    with raises_naming(ValueError, *parts):
        SearchSettings.of_run(RunSpec.from_config({**config, "search": settings}))
