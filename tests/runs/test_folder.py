"""Run folders: creation, lookup, names, and write errors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from evorl.runs.files import RunFolderError
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming


def with_checkpoint(folder: RunFolder, step: int, saved_at: float) -> RunFolder:
    manifest = folder.checkpoints / str(step) / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    os.utime(manifest, (saved_at, saved_at))
    return folder


def test_create_stores_the_config_with_references_resolved(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", {"seed": 3, "agent": {"seed": "${seed}"}})
    assert folder.load_config().agent.seed == 3
    assert folder.config.read_text() == "seed: 3\nagent:\n  seed: 3\n"
    assert RunFolder.open(folder.path) == folder


def test_runs_started_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({RunFolder.create(tmp_path, "a: 1\n").path for _ in range(3)}) == 3


def test_create_refuses_to_overwrite_a_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {}, name="first")
    with raises_naming(RunFolderError, tmp_path / "first", "resume="):
        RunFolder.create(tmp_path, {}, name="first")


def test_all_paths_lie_within_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, {})
    paths = (folder.config, folder.metrics_csv, folder.metrics_jsonl, folder.tensorboard, folder.checkpoints)
    for path in (*paths, folder.learning_curve, folder.log):
        assert path.parent == folder.path


def test_latest_is_the_run_with_the_newest_checkpoint_at_any_depth(tmp_path: Path) -> None:
    with_checkpoint(RunFolder.create(tmp_path, {}, name="b"), 10, saved_at=1000.0)
    nested = with_checkpoint(RunFolder.create(tmp_path / "sweep", {}, name="a"), 5, saved_at=2000.0)
    RunFolder.create(tmp_path, {}, name="c")  # newer, but nothing to resume
    assert RunFolder.latest(tmp_path) == nested
    assert RunFolder.find("latest", tmp_path) == nested


def test_a_checkpoint_that_a_training_removes_meanwhile_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_checkpoint(RunFolder.create(tmp_path, {}, name="a"), 10, saved_at=1000.0)
    glob = Path.glob

    def with_removed(path: Path, pattern: str) -> list[Path]:
        files = list(glob(path, pattern))
        return [*files, *(file.parents[1] / "9" / file.name for file in files if pattern.startswith("checkpoints"))]

    monkeypatch.setattr(Path, "glob", with_removed)
    assert run.saved_at() == 1000.0
    with_checkpoint(RunFolder.create(tmp_path, {}, name="b"), 10, saved_at=500.0)
    saved_at = RunFolder.saved_at

    def removed_after_reading(folder: RunFolder, *arguments: str) -> float | None:
        time = saved_at(folder, *arguments)
        if folder == run:
            shutil.rmtree(run.checkpoints, ignore_errors=True)
        return time

    monkeypatch.setattr(RunFolder, "saved_at", removed_after_reading)
    assert RunFolder.latest(tmp_path) == run


def test_a_folder_of_runs_names_its_newest_run_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "runs" / "ppo-cartpole"
    old, new = (
        with_checkpoint(RunFolder.create(group, {}, name=name), 5, saved_at=saved_at)
        for name, saved_at in (("old", 1000.0), ("new", 2000.0))
    )
    with_checkpoint(RunFolder.create(tmp_path / "runs" / "sac-hopper", {}, name="a"), 5, saved_at=1500.0)
    RunFolder.create(group, {}, name="unfinished")
    monkeypatch.chdir(tmp_path)
    for which in (group, "ppo-cartpole", "runs/ppo-cartpole", "runs", tmp_path / "runs"):
        assert RunFolder.find(which, tmp_path / "runs") == new
    assert RunFolder.find("sac-hopper", "runs").path.name == "a"
    assert RunFolder.find(old.path, "runs") == old  # a run is never searched for others
    with_checkpoint(RunFolder.create(old.path / "trials", {}, name="b"), 5, saved_at=9000.0)
    assert RunFolder.find(old.path, "runs") == old


def test_a_folder_of_runs_without_checkpoints_lists_them(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "group", {}, name="a")
    with raises_naming(RunFolderError, "group is not a run folder", run.path):
        RunFolder.find("group", tmp_path)


def test_latest_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with raises_naming(RunFolderError, "run with a checkpoint", tmp_path / "nowhere", "(no runs)"):
        RunFolder.latest(tmp_path / "nowhere")
    RunFolder.create(tmp_path, {})
    with raises_naming(RunFolderError, "runs without checkpoints: 1"):
        RunFolder.latest(tmp_path)


def test_a_missing_folder_is_answered_with_the_nearest_names(tmp_path: Path) -> None:
    for name in ("ppo-hopper", "sac-hopper", "zebra"):
        RunFolder.create(tmp_path, {}, name=name)
    with raises_naming(RunFolderError, "no folder", tmp_path / "ppo-hoper", "similar", tmp_path / "ppo-hopper"):
        RunFolder.open(tmp_path / "ppo-hoper")
    with raises_naming(RunFolderError, "no folder", "1234567", "nearby runs"):
        RunFolder.open(tmp_path / "1234567")


def test_a_folder_that_is_no_run_is_told_from_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = RunFolder.create(tmp_path / "other", {}, name="run")
    with raises_naming(RunFolderError, "config.yaml", "other/run"):
        RunFolder.open(tmp_path / "other")
    assert RunFolder.find("run", tmp_path / "other") == inside
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunFolder.find("run", "~/other") == RunFolder.find("~/other/run", "runs") == inside
    empty = tmp_path / "far" / "away" / "empty"
    empty.mkdir(parents=True)
    with raises_naming(RunFolderError, "config.yaml", "no runs"):
        RunFolder.open(empty)


def test_runs_are_looked_for_in_their_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    for group, name in (("ppo-hopper", "2026-01-01"), ("ppo-hopper", "2026-01-02"), ("sac-ant", "2026-01-03")):
        RunFolder.create(root / group, {}, name=name)
    folders = ", ".join(f"{root}/ppo-hopper/2026-01-0{day}" for day in (2, 1))  # newest first
    with raises_naming(RunFolderError, "similar", folders):
        RunFolder.open(root / "ppo-hoper")
    with raises_naming(RunFolderError, "config.yaml", "/ppo-hopper/2026-01-02"):
        RunFolder.open(root / "ppo-hopper")
    with raises_naming(RunFolderError, "similar", "/sac-ant/2026-01-03"):
        RunFolder.open(root / "sac-ent" / "2026-01-03")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with raises_naming(RunFolderError, "similar", folders):
        RunFolder.find("ppo-hoppr", root)


def test_another_config_keeps_those_before(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, {"a": 1})
    folder.update_config({"a": 1})
    assert [path.name for path in folder.path.iterdir()] == ["config.yaml"]
    folder.update_config({"a": 2})
    folder.update_config({"a": 3})
    texts = [(folder.path / name).read_text() for name in ("config.1.yaml", "config.2.yaml", "config.yaml")]
    assert texts == ["a: 1\n", "a: 2\n", "a: 3\n"]
    assert len(list(folder.path.iterdir())) == 3


def test_an_unreadable_config_is_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a: [1\n")
    with raises_naming(RunFolderError, "config.yaml", "valid YAML"):
        folder.load_config()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_naming(RunFolderError, tmp_path / "file"):
        RunFolder.create(tmp_path / "file" / "runs", {})


def test_a_run_folder_is_its_users_alone(tmp_path: Path) -> None:
    for folder in (RunFolder.create(tmp_path, {}), RunFolder.create(tmp_path, {}, name="named")):
        assert folder.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["run.log", ".metrics.csv", "checkpoints", "checkpoints/3", "tensorboard/events"])
def test_links_are_found_before_a_run_goes_on(tmp_path: Path, place: str) -> None:
    folder = RunFolder.create(tmp_path, {})
    folder.refuse_links()
    link = folder.path / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    with raises_naming(RunFolderError, place, "symbolic link"):
        folder.refuse_links()


def test_a_config_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", {"a": 1})
    target = tmp_path / "target"
    (folder.path / "config.1.yaml").symlink_to(target)
    folder.update_config({"a": 2})  # the number is used, so the next one is written
    assert (folder.path / "config.2.yaml").read_text() == "a: 1\n"
    assert not target.exists()


def test_code_from_elsewhere_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, {"env": {"factory": "os:system"}})
    with raises_naming(RunFolderError, "outside evorl", "env.factory=os:system"):
        folder.load_config()
    assert folder.load_config(trust=True).env.factory == "os:system"


def test_folder_whose_config_is_not_a_file_is_not_proposed(tmp_path: Path) -> None:
    broken, whole = tmp_path / "first", tmp_path / "second"
    (broken / "config.yaml").mkdir(parents=True)
    whole.mkdir()
    (whole / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(RunFolderError, match=r"has no config\.yaml") as error:
        RunFolder.open(broken)
    assert str(error.value).endswith(f" runs: {whole}.")
