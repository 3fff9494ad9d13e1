"""Settings of a sweep are parsed like settings of runs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from evorl.recorders.run_status import EVALUATION
from evorl.reports.comparison import grouped
from evorl.reports.page import Report
from evorl.reports.recorded_run import RecordedRun, find_runs
from evorl.reports.swept_setting import expand_sweep
from evorl.runs.about import add_start
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.run_state import FINISHED, RUNNING, STOPPED, HeldState, RunState
from evorl.sweeps.sweep_table import write_evaluations, write_sweep
from tests.support.errors import raises_naming
from tests.support.html_check import PageCheck
from tests.support.run_folders import PNG, START, make_run

SETTINGS = [{"discount": d, "agent.network": n} for d in (0.9, 0.99) for n in (None, "wide")]
RETURNS = {number: {100: [1.0 * number, 2.0], 200: [3.0 * number, 5.0]} for number in range(4)}

EVALUATIONS = {
    number: {
        at: {"episode_return": values, "success": [0.1 * number, at / 200]} for at, values in RETURNS[number].items()
    }
    for number in RETURNS
}


@pytest.fixture
def sweep(tmp_path: Path) -> RecordedRun:
    config = {
        "workflow": "evorl.algorithms.ppo.PPOWorkflow",
        "env": {"library": "gymnax", "name": "CartPole-v1"},
        "discount": 0.5,
        "agent": {"network": None},
        "total_timesteps": 200,
        "sweep": {"over": {"discount": [0.9, 0.99], "agent.network": [None, "wide"]}, "at_once": 2},
    }
    folder = RunFolder.create(tmp_path, config, "ppo-sweep")
    write_sweep(folder.sweep_table, SETTINGS, RETURNS, 2)
    write_evaluations(folder.sweep_evaluations, EVALUATIONS, 2)
    add_start(folder.about, START)
    (folder.path / "learning_curves.png").write_bytes(PNG)
    make_run(tmp_path, "ppo-sweep/best", [[1.0, 2.0]])
    make_run(tmp_path, "ppo", [[4.0]], start=START)
    return next(run for run in find_runs(tmp_path, sweeps=True) if run.name == "ppo-sweep")


def test_a_setting_has_its_values_and_the_evaluations_of_its_seeds(sweep: RecordedRun, tmp_path: Path) -> None:
    runs = expand_sweep(sweep)
    assert [run.name for run in runs] == [f"ppo-sweep {number}" for number in range(4)]
    assert [(run.config["discount"], run.config["agent"]["network"]) for run in runs] == [
        (0.9, None),
        (0.9, "wide"),
        (0.99, None),
        (0.99, "wide"),
    ]
    third = runs[2]
    assert third.by_seed()[0].values.tolist() == [2.0, 6.0]
    assert third.last().tolist() == [6.0, 5.0]
    assert third.curves[EVALUATION].values.tolist() == [2.0, 5.5]
    assert third.last("eval/success").tolist() == [0.2, 1.0]
    assert third.curves["eval/success"].values.tolist() == pytest.approx([0.35, 0.6])
    assert (third.algorithm, third.state.state, third.total_timesteps) == ("ppo", "finished", 200)
    assert {run.name for run in find_runs(tmp_path, sweeps=True)} == {"ppo", "ppo-sweep"}
    assert {run.name for run in find_runs(tmp_path)} == {"ppo", "ppo-sweep/best"}
    (ordinary,) = [run for run in find_runs(tmp_path) if run.name == "ppo"]
    assert expand_sweep(ordinary) == [ordinary]


def test_a_setting_that_diverged_has_no_return(sweep: RecordedRun) -> None:
    diverged = {100: {"episode_return": [400.0, 400.0]}, 200: {"episode_return": [400.0, math.nan]}}
    write_evaluations(sweep.folder.sweep_evaluations, {**EVALUATIONS, 1: diverged}, 2)
    runs = expand_sweep(sweep)
    assert [bool(run.curves) for run in runs] == [True, False, True, True]
    report = Report.of(runs)
    assert "ppo-sweep 1" in " ".join(report.notes)
    assert sum(len(group.runs) for group in report.groups) == 3


def test_a_page_compares_them_and_tells_the_sweeps_command_and_pictures_once(sweep: RecordedRun) -> None:
    runs = expand_sweep(sweep)
    assert [group.label for group in grouped(runs, ["discount"])] == ["discount=0.9", "discount=0.99"]
    text = Report.of(runs).to_html()
    assert PageCheck(text).faults == []
    assert text.count("evorl train agent=ppo") == 1
    assert text.count("data:image/png") == 1


def test_a_page_compares_them_by_another_metric(sweep: RecordedRun) -> None:
    report = Report.of(expand_sweep(sweep), ["discount"], "eval/success")
    first, second = (sorted(group.scores.tolist()) for group in report.groups)
    assert first == pytest.approx([0.0, 0.1, 1.0, 1.0])
    assert second == pytest.approx([0.2, 0.3, 1.0, 1.0])
    assert PageCheck(report.to_html()).faults == []


@pytest.mark.parametrize(
    "over",
    [
        {"discount": [0.9, 0.99], "agent": {"network": [None, "wide"], "clip_epsilon": None}},
        {"over": {"agent": {"network": [None, "wide"]}, "discount": {"low": 0.9, "high": 1.0}}, "draws": 4},
    ],
)
def test_the_paths_of_a_sweep_may_be_nested(over: dict, sweep: RecordedRun) -> None:
    sweep.folder.update_config({**sweep.config, "sweep": over})
    runs = expand_sweep(RecordedRun(sweep.folder, sweep.name))
    assert [(run.config["discount"], run.config["agent"]["network"]) for run in runs] == [
        (setting["discount"], setting["agent.network"]) for setting in SETTINGS
    ]


def test_a_table_of_another_sweep_is_told(sweep: RecordedRun) -> None:
    write_sweep(sweep.folder.sweep_table, [{"seed": 1}], {0: {}}, 2)
    with raises_naming(RunFolderError, "sweep.csv", "ppo-sweep"):
        expand_sweep(sweep)


@pytest.mark.parametrize("cell", ['"${oc.env:HOME}"', "'${'", "[", "1, 2", "!!python/name:os.system", "*x", "\x1b"])
def test_a_value_that_is_no_plain_one_is_damage(cell: str, sweep: RecordedRun) -> None:
    import csv

    table = sweep.folder.sweep_table
    with table.open(newline="") as file:
        header, first, *others = csv.reader(file)
    first[header.index("agent.network")] = cell
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([header, first, *others])
    with raises_naming(RunFolderError, "corrupted", "setting 0", "agent.network="):
        _ = expand_sweep(sweep)[0].config


@pytest.mark.parametrize("text", ["x,100", "0,inf", "0,-1", "0,abc", ",100"])
def test_a_corrupted_evaluation_is_reported_with_its_table(text: str, sweep: RecordedRun) -> None:
    sweep.folder.sweep_evaluations.write_text(f"setting,timesteps,eval_return\n{text},1.0\n", encoding="utf-8")
    with raises_naming(RunFolderError, "evaluations.csv", "corrupted"):
        _ = expand_sweep(sweep)[0].timesteps


@pytest.mark.parametrize("has_best", [True, False])
def test_a_sweep_in_progress_is_running(has_best: bool, sweep: RecordedRun) -> None:
    if not has_best:
        shutil.rmtree(sweep.folder.path / "best")
    with HeldState(sweep.folder.state):
        settings = expand_sweep(RecordedRun(sweep.folder, sweep.name))
        assert {run.state for run in settings} == {RunState(RUNNING, 200)}
        assert not any(run.can_be_resumed for run in settings)
    assert {run.state.state for run in expand_sweep(sweep)} == {FINISHED if has_best else STOPPED}


def test_a_sweep_without_results_is_stopped(sweep: RecordedRun) -> None:
    shutil.rmtree(sweep.folder.path / "best")
    assert {run.state.state for run in expand_sweep(sweep)} == {"stopped"}
    sweep = RecordedRun(sweep.folder, sweep.name)  # reads the state again
    sweep.folder.log.write_text("2026-01-01 00:00:00  Stopped early. To resume: evorl train\n", encoding="utf-8")
    assert {run.state.state for run in expand_sweep(sweep)} == {"stopped"}
