"""Commands that need one run use the best one of a sweep or search."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evorl.runs.best_run import find_run
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.sweep_folder import SweepFolder
from tests.support.errors import raises_naming
from tests.support.run_folders import with_checkpoint


def _make_runs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").write_text("seed: 0\n")


def _make_sweep(root: Path, returns: list[float | None], envs: list[str] | None = None) -> SweepFolder:
    settings = [{"seed": str(i)} | ({"env": envs[i]} if envs else {}) for i in range(len(returns))]
    sweep = SweepFolder.create(root, [], [([], setting) for setting in settings], "sweep")
    for run, value in zip(sweep.runs, returns, strict=True):
        run.best_return = value
    sweep.save()
    _make_runs(sweep.path, *(run.folder for run in sweep.runs))
    return sweep


@pytest.mark.parametrize("name", ["sweep", "absolute"])
def test_of_a_sweep_it_is_the_job_with_the_best_return(tmp_path: Path, name: str) -> None:
    sweep = _make_sweep(tmp_path, [1.0, None, 3.0, 2.0])
    which = sweep.path if name == "absolute" else name
    assert find_run(which, tmp_path).path == sweep.folder_of(sweep.runs[2]).path


def test_the_best_run_of_a_sweep_may_be_a_sweep_or_search_itself(tmp_path: Path) -> None:
    sweep = _make_sweep(tmp_path, [1.0, 3.0])
    best, trial = sweep.folder_of(sweep.runs[1]), sweep.folder_of(sweep.runs[0])
    _make_runs(best.path, "best")
    best.sweep_table.touch()
    assert find_run(sweep.path, tmp_path).path == best.path / "best"
    sweep.runs[0].best_return = 5.0
    sweep.save()
    _make_runs(trial.path, "trial_0003")
    trial.search_table.write_text("trial,best_return,state\n3,5.0,finished\n")
    assert find_run(sweep.path, tmp_path).path == trial.path / "trial_0003"


def test_returns_of_several_environments_are_not_compared(tmp_path: Path) -> None:
    sweep = _make_sweep(tmp_path, [1.0, 5.0, 3.0], ["cartpole", "pendulum", "cartpole"])
    with raises_naming(RunFolderError, "sweep over environments", "best run of each") as error:
        find_run(sweep.path, tmp_path)
    assert [run.folder in str(error.value) for run in sweep.runs] == [False, True, True]


CARTPOLE, PENDULUM = "library: gymnax, name: CartPole-v1", "library: gymnax, name: Pendulum-v1"


def _make_sweep_of_configs(root: Path, name: str, values: list[str], envs: list[str]) -> SweepFolder:
    """Make a sweep of two values with two seeds each; ``envs`` has the environment in the configs of each value."""
    settings = [{name: value, "seed": seed} for value in values for seed in ("0", "1")]
    sweep = SweepFolder.create(root, [], [([], setting) for setting in settings], "sweep")
    for number, run in enumerate(sweep.runs):
        run.best_return = [1.0, 2.0, 4.0, 3.0][number]
        _make_runs(sweep.path, run.folder)
        sweep.folder_of(run).config.write_text(f"env: {{{envs[number // 2]}}}\n")
    sweep.save()
    return sweep


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("experiment", ["ppo/cartpole", "sac/cartpole"]),
        ("env", ["cartpole", "gymnax/CartPole-v1"]),
        ("env.max_episode_steps", ["100", "200"]),
    ],
)
def test_returns_in_the_same_environment_are_compared(name: str, values: list[str], tmp_path: Path) -> None:
    sweep = _make_sweep_of_configs(tmp_path, name, values, [CARTPOLE, CARTPOLE])
    assert find_run("sweep", tmp_path) == sweep.folder_of(sweep.runs[2])


@pytest.mark.parametrize(
    ("name", "values", "envs"),
    [
        ("env.name", ["CartPole-v1", "Pendulum-v1"], [CARTPOLE, PENDULUM]),
        ("env.library", ["gymnax", "gymnasium"], [CARTPOLE, "library: gymnasium, name: CartPole-v1"]),
        ("env.factory", ["m:A", "m:B"], ["factory: 'm:A'", "factory: 'm:B'"]),
        ("experiment", ["ppo/cartpole", "ppo/pendulum"], [CARTPOLE, PENDULUM]),
    ],
)
def test_returns_in_different_environments_are_not_compared(
    name: str, values: list[str], envs: list[str], tmp_path: Path
) -> None:
    sweep = _make_sweep_of_configs(tmp_path, name, values, envs)
    with raises_naming(RunFolderError, "sweep over environments", "best run of each") as error:
        find_run("sweep", tmp_path)
    assert [run.folder in str(error.value) for run in sweep.runs] == [False, True, True, False]


def test_of_sweep_it_is_the_run_that_was_kept(tmp_path: Path) -> None:
    _make_runs(tmp_path, "sweep")
    (tmp_path / "sweep" / "sweep.csv").write_text("")
    with raises_naming(RunFolderError, "resume=", "/sweep"):
        find_run("sweep", tmp_path)
    _make_runs(tmp_path, "sweep/best")
    assert find_run("sweep", tmp_path).path == tmp_path / "sweep" / "best"


def test_of_a_search_it_is_the_best_trial_in_its_last_folder(tmp_path: Path) -> None:
    _make_runs(tmp_path, "search", "search/trial_0000", "search/trial_0001", "search/trial_0001_2", "search/trial_0002")
    _make_runs(tmp_path, "search/trial_0003")
    table = tmp_path / "search" / "search.csv"
    table.write_text(
        "trial,discount,best_return,state,failure\n0,0.9,1.0,finished,\n1,0.8,7.5,finished,\n2,1,,failed,x\n"
        "3,0.7,9.0,pruned,\n"
    )
    assert find_run("search", tmp_path).path.name == "trial_0001_2"
    table.write_text("trial,discount,best_return,state,failure\n2,1,,failed,x\n")
    with raises_naming(RunFolderError, "search", "without a best run"):
        find_run("search", tmp_path)
    table.write_text("trial,best_return\n../../x,7\n")
    with raises_naming(RunFolderError, "search.csv", "trials"):
        find_run("search", tmp_path)


def test_of_a_folder_of_runs_it_is_the_newest_or_the_best_of_its_newest_sweep(tmp_path: Path) -> None:
    _make_runs(tmp_path, "group/a", "group/sweep", "group/sweep/best")
    (tmp_path / "group" / "sweep" / "sweep.csv").write_text("")
    for name, saved_at in (("a", 1000.0), ("sweep", 2000.0)):
        with_checkpoint(RunFolder(tmp_path / "group" / name))
        os.utime(tmp_path / "group" / name / "checkpoints" / "5" / "manifest.json", (saved_at, saved_at))
    assert find_run("group", tmp_path).path == tmp_path / "group" / "sweep" / "best"


def test_all_else_is_found_as_it_is(tmp_path: Path) -> None:
    _make_runs(tmp_path, "a")
    assert find_run("a", tmp_path) == RunFolder(tmp_path / "a")
    with raises_naming(RunFolderError, "no folder b"):
        find_run("b", tmp_path)
    with raises_naming(RunFolderError, "sweep", "without a best run"):
        find_run(_make_sweep(tmp_path, [None]).path, tmp_path)
