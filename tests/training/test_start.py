"""The folder of a run, and the command that resumes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evorl.runs.about import read_starts
from evorl.runs.folder import RunFolder
from evorl.training.start import RunPlace, RunStart, resume_command
from tests.support.config_files import spec_of


@pytest.fixture
def start(tmp_path: Path) -> RunStart:
    return RunStart(RunPlace(tmp_path, "mine"), None, "A title", ["seed=3"], {"agent": "ppo"}, tmp_path)


def test_a_new_run_gets_a_folder_and_a_resumed_one_has_it(start: RunStart, tmp_path: Path) -> None:
    spec = spec_of("agent=ppo", "env=cartpole")
    folder = start.folder(spec)
    assert folder.path == tmp_path / "mine"
    assert folder.config.is_file()
    assert RunStart(RunPlace(tmp_path, None), folder, "", [], {}, tmp_path).folder(spec) is folder


def test_every_start_is_recorded(start: RunStart, tmp_path: Path) -> None:
    spec = spec_of("agent=ppo", "env=cartpole")
    folder = start.folder(spec)
    dataclasses.replace(start, resumed=folder).record_resume(spec)
    start.record_resume(spec)  # a new run is recorded with its folder
    first, second = read_starts(folder.about)
    assert first["agent"] == second["agent"] == "ppo"
    assert first["command"].endswith(" seed=3")


def test_a_changed_config_is_stored_for_the_next_resume(start: RunStart, tmp_path: Path) -> None:
    """A search that is stopped a second time has to remember its new number of trials."""
    old, new = spec_of("agent=ppo", "env=cartpole"), spec_of("agent=ppo", "env=cartpole", "search={trials: 7}")
    folder = start.folder(old)
    RunStart(RunPlace(tmp_path, None), folder, "", [], {}, tmp_path).record_resume(new)
    assert folder.load_config().search.trials == 7
    assert (folder.path / "config.1.yaml").is_file()


def test_a_run_is_resumed_by_its_folder_and_a_job_by_its_sweep(start: RunStart, tmp_path: Path) -> None:
    spec = spec_of("agent=ppo", "env=cartpole")
    folder = RunFolder(tmp_path / "mine")
    assert resume_command(folder, spec).endswith(f" resume={folder.path}")
    assert start.resume_command(folder, spec) == resume_command(folder, spec)
    assert not start.place.should_stop()
    place = RunPlace(tmp_path, "0", "evorl train resume=sweep", lambda: True)
    job = RunStart(place, None, "", [], {}, tmp_path)
    assert job.resume_command(folder, spec) == "evorl train resume=sweep"


def test_code_of_the_user_is_repeated_when_a_run_is_resumed(tmp_path: Path) -> None:
    spec = spec_of("agent=ppo", "env=cartpole").changed({"optimizer.name": "my_parts:Optimizer"})
    command = resume_command(RunFolder(tmp_path), spec)
    assert command.endswith(f"resume={tmp_path} optimizer.name=my_parts:Optimizer")
    for setting in ({"recorders.own": ["my_parts:Rows"]}, {"agent.network.torso": [{"name": "my_parts:Layer"}]}):
        command = resume_command(RunFolder(tmp_path), spec.changed(setting))
        assert command.endswith(f"resume={tmp_path} trust=true")  # an entry of a list has no name on a command line


def test_the_resume_command_of_a_search_allows_its_download(tmp_path: Path) -> None:
    spec = spec_of("agent=ppo", "env=cartpole").changed({"init_from.run": "https://example.com/a.zip"})
    assert resume_command(RunFolder(tmp_path), spec).endswith(" trust=true")
    spec = spec_of("agent=ppo", "env=cartpole").changed({"init_from.run": "runs/a.zip"})
    assert resume_command(RunFolder(tmp_path), spec).endswith(f" resume={tmp_path}")
