"""``evorl pack``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import evorl
from evorl.cli import pack as command
from evorl.cli.commands import run
from evorl.runs.folder import RunFolder
from tests.support.errors import raises_naming


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_run_is_packed_and_evaluated(trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = evorl.pack(run=trained.path, to=tmp_path / "new" / "policy.zip", license="mit")
    printed = capsys.readouterr().out
    assert path == tmp_path / "new" / "policy.zip"
    assert f"sha256={hashlib.sha256(path.read_bytes()).hexdigest()}" in printed
    assert f"evorl evaluate run={path}" in printed
    again = run(["pack", f"run={path}", f"to={tmp_path / 'again.zip'}"])  # a packed policy is a run like any other
    assert again.is_file()


def test_an_upload_has_the_card_and_the_pages(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uploads = []

    def upload(*arguments: object) -> str:
        uploads.append(arguments)
        return "https://the.hub/commit"

    monkeypatch.setattr(command, "upload_to_hub", upload)
    path = run(["pack", f"run={trained.path}", "to=hf://anna/policy"])
    ((address, files, message),) = uploads
    assert address == "hf://anna/policy"
    assert files["policy.zip"] == path.read_bytes()
    assert {"README.md", "report.html", "policy.html"} <= set(files)
    assert message == "ppo on gymnax/CartPole-v1"
    printed = capsys.readouterr().out
    assert "https://the.hub/commit" in printed
    assert "evorl evaluate run=hf://anna/policy" in printed


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["no run", "run=latest"]),
        (["run=latest", "to=policy.tar"], ["to=policy.tar", ".zip"]),
        (["run=latest", "to=https://example.com/a.zip"], ["https://example.com/a.zip", "hf://"]),
        (["run=latest", "to=hf://anna"], ["hf://anna", "hf://<owner>/<name>"]),
        (["run=latest", "checkpoint=worst"], ["checkpoint", "worst"]),
        (["run=latest", "licence=mit"], ["licence", "license"]),
    ],
)
def test_wrong_options_are_errors_before_anything_is_read(
    arguments: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_naming((ValueError, OSError), *parts):
        run(["pack", *arguments])
