"""Hydra's settings name the folder of a run or of a sweep; others are rejected with the option to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from evorl.cli import main as cli
from evorl.cli.hydra_folders import refuse_other_names, sweep_folder
from evorl.runs.folder import RunFolder
from tests.support.command_line import SMALL


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["hydra.sweep.dir=a b"], ["hydra.sweep.dir=a b is for a sweep (-m)", "'hydra.run.dir=a b'"]),
        (["hydra.sweep.subdir=x"], ["hydra.run.dir=FOLDER"]),
        (["-m", "hydra.run.dir=x"], ["hydra.run.dir=x is for a single run", "hydra.sweep.dir=x"]),
        (["hydra.job.name=x"], ["hydra.job.name=x", "title=NAME"]),
        (["++hydra.job.chdir=true"], ["hydra.job.chdir=true", "hydra.run.dir=FOLDER"]),
        (["hydra.runtime.output_dir=x"], ["hydra.run.dir=FOLDER"]),
    ],
)
def test_a_name_that_would_be_ignored_is_refused(arguments: list[str], parts: list[str]) -> None:
    with pytest.raises(ValueError, match="hydra") as raised:
        refuse_other_names(arguments, names_a_run=False)
    assert [part for part in parts if part not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("arguments", "names_a_run"),
    [
        (["hydra.run.dir=x"], False),
        (["-m", "hydra.sweep.dir=x", "hydra.sweep.subdir=y"], False),
        (["--multirun", "hydra/launcher=basic", "hydra.launcher.x=1"], False),
        (["hydra.job.chdir=false"], False),
        (["resume=x", "seed=1"], True),
    ],
)
def test_others_pass(arguments: list[str], names_a_run: bool) -> None:
    refuse_other_names(arguments, names_a_run)


def test_a_stored_run_stays_in_its_folder(run, trained: RunFolder) -> None:
    assert "hydra.run.dir=x has no effect" in run(cli.train, f"resume={trained.path}", "hydra.run.dir=x")[1]
    assert "hydra.run.dir=x has no effect" in run(cli.evaluate, f"run={trained.path}", "hydra.run.dir=x")[1]


def test_the_folder_of_a_run_is_the_one_named(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "total_timesteps=64", "hydra.run.dir=my runs/${now:%Y}"]
    assert run(cli.train, *arguments)[1] == ""
    (own,) = (tmp_path / "my runs").iterdir()
    assert own.name.isdigit()
    assert RunFolder(own).load_config().total_timesteps == 64
    assert own.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["my runs"]
    assert "already contains a run" in run(cli.train, *SMALL, f"hydra.run.dir={own}")[1]


def test_a_sweeper_of_hydras_places_runs_as_it_is_told(run, tmp_path: Path) -> None:
    folders = [f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir='job ${hydra.job.num}'"]
    assert run(cli.train, "-m", *SMALL, "total_timesteps=64", *folders, "seed=3,4")[1] == ""
    seeds = {path.name: RunFolder(path).load_config().seed for path in tmp_path.iterdir() if path.is_dir()}
    assert seeds == {"job 0": 3, "job 1": 4}


def test_interpolations_in_the_folder_of_a_sweep_are_resolved(tmp_path: Path) -> None:
    folder, others = sweep_folder(["seed=0,1", f"hydra.sweep.dir={tmp_path}/${{now:%Y}}"])
    assert folder is not None
    assert folder.parent == tmp_path
    assert folder.name.isdigit()
    assert others == ["seed=0,1"]
    assert sweep_folder(["seed=0"]) == (None, ["seed=0"])
