"""The record of a run's starts: its contents and omissions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jax
import pytest

from evorl.runs.about import add_start, commit_of, describe_start, installed_versions, processor_name, read_starts
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming


def test_starts_stand_behind_one_another(tmp_path: Path) -> None:
    path = tmp_path / "about.json"
    assert read_starts(path) == []
    for arguments in (["agent=ppo", "agent.network.torso=[8, 8]"], ["resume=latest"]):
        add_start(path, describe_start("evorl train", arguments, "1 x cpu"))
    first, second = read_starts(path)
    assert first["command"] == "evorl train agent=ppo 'agent.network.torso=[8, 8]'"
    assert second["command"] == "evorl train resume=latest"
    assert first["processor"] == processor_name()
    assert (first["device"], first["commit"]) == ("1 x cpu", None)
    assert first["versions"]["jax"] == jax.__version__
    assert [file.name for file in tmp_path.iterdir()] == ["about.json"]


@pytest.mark.parametrize(
    "argument", ["my.api_key=123abc", "recorders.wandb={api_key: 123abc}", "env.auth_token=123abc"]
)
def test_secrets_are_left_out(argument: str) -> None:
    command = describe_start("evorl train", [argument, "agent=ppo"], "cpu")["command"]
    assert command == f"evorl train {argument.partition('=')[0]}=... agent=ppo"


def test_versions_are_of_what_trains() -> None:
    versions = dict(installed_versions())
    assert {"python", "jax", "jaxlib", "numpy"} <= set(versions)
    assert not {"pytest", "ruff", "mkdocs"} & set(versions)


def test_a_commit_and_what_was_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    assert commit_of(tmp_path / "nowhere") is None
    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    head = (tmp_path / ".git").joinpath(*(tmp_path / ".git/HEAD").read_text().split()[1].split("/")).read_text().strip()
    assert commit_of(tmp_path) == head
    commit_of.cache_clear()
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == f"{head} + changes"
    (tmp_path / "inside").mkdir()
    assert commit_of(tmp_path / "inside") is None  # installed into a clone of another repository


@pytest.mark.parametrize("text", ["", "[]", '{"starts": 3}', "no json"])
def test_what_cannot_be_read_is_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "about.json"
    path.write_text(text)
    assert read_starts(path) == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "about.json").symlink_to(tmp_path / "elsewhere")
    for call in (lambda path: add_start(path, {}), read_starts):
        with raises_naming(RunFolderError, "about.json", "symbolic link"):
            call(tmp_path / "about.json")
