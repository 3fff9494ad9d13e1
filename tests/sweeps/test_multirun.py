"""Runs of a sweep that a launcher starts, and the ranking of their settings."""

from __future__ import annotations

import errno
import functools
from collections.abc import Sequence
from pathlib import Path

import pytest

from evorl.cli.launcher import launch
from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.sweep_folder import SweepFolder, SweptRun
from evorl.sweeps.multirun import launch_runs, ranked, train_runs
from evorl.sweeps.trained import Attempt, RunsFailed
from evorl.training.start import RunPlace, Trained
from tests.support.errors import raises_naming
from tests.support.run_folders import STEPS, make_run, with_checkpoint


def test_settings_are_ranked_by_their_mean_over_seeds() -> None:
    def run(agent: str, seed: int, best: float | None) -> SweptRun:
        return SweptRun([], {"agent": agent, "seed": str(seed)}, "", best_return=best)

    runs = [run("ppo", 0, 9.0), run("ppo", 1, 1.0), run("sac", 0, 6.0), run("sac", 1, None), run("ars", 0, None)]
    assert [name for name, _ in ranked(runs)] == ["agent=sac", "agent=ppo", "agent=ars"]


def _sweep(root: Path) -> SweepFolder:
    return SweepFolder.create(root, [], [([f"seed={seed}"], {"seed": str(seed)}) for seed in range(2)], "sweep")


def test_a_failed_job_of_a_launcher_does_not_fail_the_others(tmp_path: Path) -> None:
    outcomes = [Attempt(None, "its process failed: killed"), Attempt(Trained(7.5, False))]
    with raises_naming(RunsFailed, "seed=0", "its process failed: killed"):
        launch_runs(_sweep(tmp_path), lambda _: outcomes)
    states = [(run.state, run.best_return) for run in SweepFolder.open(tmp_path / "sweep").runs]
    assert states == [("failed", None), ("finished", 7.5)]


@pytest.mark.parametrize("is_launched", [False, True])
def test_failures_within_a_finished_run_are_reported_also_after_a_resume(tmp_path: Path, is_launched: bool) -> None:
    """The run is itself a sweep or search, whose command alone would end with status 1."""
    sweep, trained = _sweep(tmp_path), Trained(7.5, False, None, ("discount=0.9: diverged.", "discount=1: diverged."))
    with raises_naming(RunsFailed, "2 runs failed", "seed=0: discount=0.9: diverged. discount=1: diverged."):
        if is_launched:
            launch_runs(sweep, lambda sweep: [Attempt(trained) for _ in sweep.runs])
        else:
            train_runs(sweep, lambda *_: trained, str)
    with raises_naming(RunsFailed, "2 runs failed", "seed=1: discount=0.9"):
        train_runs(SweepFolder.open(sweep.path), lambda *_: pytest.fail("a finished run was trained"), str)
    assert {run.state for run in SweepFolder.open(sweep.path).runs} == {"finished"}


@pytest.mark.parametrize(("table", "best"), [(None, ""), ("sweep.csv", "best"), ("search.csv", "trial_0001")])
def test_the_summary_has_the_steps_and_the_last_return_of_each_run(
    table: str | None, best: str, tmp_path: Path
) -> None:
    """If the run is itself a sweep or search, the best run counts, as for the best return."""

    def train(_: Sequence[str], place: RunPlace) -> Trained:
        folder = RunFolder(place.root / str(place.name))
        if table is not None:
            RunFolder.create(place.root, {"workflow": "a.B"}, place.name)
            rows = "trial,best_return,state\n0,1.0,finished\n1,9.0,finished\n" if best.startswith("trial") else ""
            (folder.path / table).write_text(rows)
        make_run(place.root, f"{place.name}/{best}".rstrip("/"), [[9.0], [7.5]])
        return Trained(9.0, False, folder.path)

    train_runs(sweep := _sweep(tmp_path), train, str)
    assert [(run.timesteps, run.last_return, run.best_return) for run in sweep.runs] == [(2 * STEPS, 7.5, 9.0)] * 2
    assert sweep.learning_curves.is_file()


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_sweep_is_trained_by_one_process(tmp_path: Path, is_launched: bool) -> None:
    """A second process would train the same runs again, and overwrite the results of the first one."""

    def train_twice(*_: object) -> Trained:
        before = (sweep.path / "sweep.json").read_bytes()
        with raises_naming(RunFolderError, sweep.path, "already being trained"):
            train_runs(SweepFolder.open(sweep.path), lambda *_: Trained(1.0, False), str)
        assert (sweep.path / "sweep.json").read_bytes() == before
        return Trained(7.5, False)

    sweep = _sweep(tmp_path)
    if is_launched:
        launch_runs(sweep, lambda sweep: [Attempt(train_twice()) for _ in sweep.runs])
    else:
        train_runs(sweep, train_twice, str)
    assert [run.best_return for run in SweepFolder.open(sweep.path).runs] == [7.5, 7.5]
    train_runs(SweepFolder.open(sweep.path), train_twice, str)  # the lock is released


def test_a_resumed_sweep_is_read_after_it_is_locked(tmp_path: Path) -> None:
    """Between reading and locking, another process may have trained a run and ended."""
    sweep = _sweep(tmp_path)
    before = SweepFolder.open(sweep.path)
    train_runs(sweep, lambda *_: Trained(7.5, False), str)
    train_runs(before, lambda *_: pytest.fail("a finished run was trained"), str, lambda _: Trained(1.0, False))
    assert [run.best_return for run in SweepFolder.open(sweep.path).runs] == [7.5, 7.5]


def test_a_resumed_sweep_continues_a_sweep_or_search_among_its_runs(tmp_path: Path) -> None:
    """Only the folders of their parts or trials contain checkpoints."""
    sweep = _sweep(tmp_path)
    for swept, part in zip(sweep.runs, ("round_0/group_0_part_0", "trial_0000"), strict=True):
        with_checkpoint(RunFolder(sweep.folder_of(swept).path / part))
        swept.state = "stopped"
    sweep.save()
    resumed: list[str | None] = []

    def resume(place: RunPlace) -> Trained:
        resumed.append(place.name)
        return Trained(1.0, False)

    train_runs(sweep, lambda *_: pytest.fail("a run started again"), str, resume)
    assert resumed == [swept.folder for swept in sweep.runs]


def test_a_full_disk_ends_a_sweep(tmp_path: Path) -> None:
    """The other runs would fail as well; a search would count them as trials, which no resume repeats."""

    def train(*_: object) -> Trained:
        failure = RunFolderError("no space is left")
        failure.errno = errno.ENOSPC
        raise failure

    sweep = _sweep(tmp_path)
    with raises_naming(RunFolderError, "no space"):
        train_runs(sweep, train, str)
    assert [run.state for run in SweepFolder.open(sweep.path).runs] == ["stopped", "waiting"]


def test_a_full_disk_ends_a_launched_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later run failed after its own compilation, and was recorded as failed."""
    trained: list[int] = []

    def train(spec: RunSpec) -> Trained:
        trained.append(spec.seed)
        if spec.seed == 1:
            failure = RunFolderError("no space is left")
            failure.errno = errno.ENOSPC
            raise failure
        return Trained(7.5, False)

    monkeypatch.setattr("evorl.cli.launcher.train_run", train)
    for name in ("sweep", "later"):
        trained.clear()
        runs = [([f"seed={seed}", "agent=ppo", "env=cartpole"], {"seed": str(seed)}) for seed in range(4)]
        sweep = SweepFolder.create(tmp_path, [], runs, name)
        with raises_naming(RunFolderError, "no space is left", f"resume={sweep.path}"):
            launch_runs(sweep, functools.partial(launch, of_launcher=["hydra/launcher=basic"]))
        states = [(run.state, run.failure) for run in SweepFolder.open(sweep.path).runs]
        assert (states, trained) == ([("finished", ""), *[("stopped", "")] * 3], [0, 1])


def test_the_sweep_of_a_failed_launcher_can_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def launch(_: SweepFolder) -> Sequence[Attempt]:
        raise RuntimeError("a process was lost")

    with pytest.raises(RuntimeError, match="lost"):
        launch_runs(_sweep(tmp_path), launch)
    assert [run.state for run in SweepFolder.open(tmp_path / "sweep").runs] == ["stopped", "stopped"]
    assert f"resume={tmp_path / 'sweep'}" in capsys.readouterr().out
