"""The folder of a sweep: round trips, and errors for invalid contents."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from evorl.runs.sweep_folder import SweepFolder, find_to_resume
from tests.support.errors import raises_naming
from tests.support.run_folders import with_checkpoint

JOBS = [(["agent=ppo", f"seed={seed}", "x={a: 1}"], {"agent": "ppo", "seed": str(seed)}) for seed in range(11)]


def test_a_sweep_is_read_as_it_was_stored(tmp_path: Path) -> None:
    sweep = SweepFolder.create(tmp_path / "runs", ["--config-dir", "mine"], JOBS, names_code=True)
    sweep.runs[3].state, sweep.runs[3].best_return = "finished", 2.5
    sweep.save()
    assert SweepFolder.exists(sweep.path)
    assert SweepFolder.open(sweep.path, trust=True) == sweep  # with a flag
    assert not SweepFolder.exists(tmp_path)
    rows = sweep.summary.read_text().splitlines()
    assert rows[0] == "agent,seed,folder,state,timesteps,best_return,last_return,failure"
    assert rows[4] == "ppo,3,03-agent_ppo-seed_3,finished,0,2.5,,"


def test_names_of_runs_say_the_setting_and_nothing_that_a_shell_would_read(tmp_path: Path) -> None:
    setting = {"optimizer.learning_rate": "1e-3", "agent.network.torso": "[64,64]", "env": "brax/hopper"}
    sweep = SweepFolder.create(tmp_path, [], [([], setting)])
    assert sweep.runs[0].folder == "0-learning_rate_1e_3-torso__64_64-env_brax_hopper"
    assert sweep.runs[0].describe(without=("env",)) == "optimizer.learning_rate=1e-3 agent.network.torso=[64,64]"


@pytest.mark.parametrize(
    "change",
    [
        *({"folder": "../elsewhere"}, {"state": "lost"}, {"more": 1}, {"best_return": "high"}),
        *({name: float(value)} for name in ("best_return", "last_return") for value in ("nan", "inf", "-inf")),
    ],
)
def test_what_cannot_be_a_sweep_is_refused(tmp_path: Path, change: dict) -> None:
    path = SweepFolder.create(tmp_path, [], JOBS[:1]).path / "sweep.json"
    stored = json.loads(path.read_text())
    stored["jobs"][0] |= change
    path.write_text(json.dumps(stored))
    with raises_naming(RunFolderError, "sweep.json", "jobs[0]"):
        SweepFolder.open(path.parent)


@pytest.mark.parametrize("stored", [None, True, False, 1, "yes"])
def test_a_stored_sweep_tells_that_its_configs_name_code(tmp_path: Path, stored: object) -> None:
    path = SweepFolder.create(tmp_path, [], JOBS[:1]).path / "sweep.json"
    content = {**json.loads(path.read_text()), "names_code": stored}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    if isinstance(stored, bool | None):
        assert ("trust=true" in SweepFolder.open(path.parent).resume_arguments) == bool(stored)
    else:
        with raises_naming(RunFolderError, "sweep.json", "names_code"):
            SweepFolder.open(path.parent)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    sweep = SweepFolder.create(tmp_path, [], JOBS[:1])
    sweep.summary.unlink()
    sweep.summary.symlink_to(tmp_path / "target")
    with raises_naming(RunFolderError, "symbolic link"):
        sweep.save()
    assert not (tmp_path / "target").exists()


def make_part(whole: Path, name: str, state: str) -> Path:
    """Create a run with a checkpoint in a sweep or search."""
    run = with_checkpoint(RunFolder.create(whole, {}, name))
    run.state.write_text(json.dumps({"state": state}))
    return run.path


@pytest.mark.parametrize(
    ("table", "state", "continues_whole"),
    [
        *(("search.csv", state, True) for state in ("finished", "stopped")),
        *(("sweep.csv", "finished", True), ("sweep.csv", "stopped", False)),  # the best setting, resumed alone
    ],
)
def test_the_latest_run_is_resumed_with_its_sweep_or_search_in_one_folder(
    tmp_path: Path, table: str, state: str, continues_whole: bool
) -> None:
    whole = RunFolder.create(tmp_path, {}, "whole").path
    (whole / table).touch()
    part = make_part(whole, "part", state)
    for which in ("latest", tmp_path):
        assert find_to_resume(which, tmp_path) == (whole if continues_whole else part).resolve()
    for named in (whole, part):
        assert find_to_resume(named, tmp_path) == named.resolve()
        assert find_to_resume(str(named.relative_to(tmp_path)), tmp_path) == named.resolve()


@pytest.mark.parametrize(
    ("states", "state", "continues_whole"),
    [
        *((("finished", "finished"), "finished", True), (("finished", "waiting"), "finished", True)),
        *((("running", "waiting"), "stopped", True), (("finished", "finished"), "stopped", False)),
    ],
)
def test_the_latest_run_is_resumed_with_its_sweep_unless_that_is_finished(
    tmp_path: Path, states: tuple[str, str], state: str, continues_whole: bool
) -> None:
    sweep = SweepFolder.create(tmp_path, [], JOBS[:2])
    sweep.runs[0].state, sweep.runs[1].state = states
    sweep.save()
    part = make_part(sweep.path, sweep.runs[0].folder, state)
    assert find_to_resume("latest", tmp_path) == (sweep.path if continues_whole else part.resolve())
    assert find_to_resume(part, tmp_path) == part.resolve()
    assert find_to_resume(sweep.path.name, tmp_path) == sweep.path


def test_a_sweep_within_a_sweep_is_resumed_as_a_whole(tmp_path: Path) -> None:
    sweep = SweepFolder.create(tmp_path, [], JOBS[:2])
    inner = RunFolder.create(sweep.path, {}, sweep.runs[0].folder)
    (inner.path / "sweep.csv").touch()
    best = make_part(inner.path, "best", "finished")
    assert find_to_resume("latest", tmp_path) == sweep.path
    assert find_to_resume(best, tmp_path) == best.resolve()


def test_the_latest_sweep_in_one_program_is_resumed_before_it_has_a_best_run(tmp_path: Path) -> None:
    old, best = (with_checkpoint(RunFolder.create(tmp_path, {}, name)) for name in ("group/old", "group/whole/best"))
    os.utime(next(old.checkpoints.glob("*/manifest.json")), (0, 0))
    whole = RunFolder.create(tmp_path, {}, "group/whole")
    (whole.path / "sweep.csv").touch()
    part = whole.path / "round_0" / "group_0_part_0" / "checkpoints"
    part.parent.mkdir(parents=True)
    best.checkpoints.rename(part)  # stopped in its first round
    for which in ("latest", "group", tmp_path / "group"):
        assert find_to_resume(which, tmp_path) == whole.path
    assert RunFolder.latest(tmp_path).path == old.path, "other commands need a run with a policy"
    with_checkpoint(best)
    assert find_to_resume("latest", tmp_path) == best.path


def test_the_latest_run_outside_of_sweeps_is_resumed_alone(tmp_path: Path) -> None:
    run = with_checkpoint(RunFolder.create(tmp_path / "group", {}, "run"))
    assert find_to_resume("latest", tmp_path) == run.path.resolve()
    with raises_naming(RunFolderError, "no run"):
        find_to_resume("latest", tmp_path / "nothing")
