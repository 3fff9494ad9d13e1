"""A result names the commit of its code."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.machine import describe_commit


def test_a_commit_and_changes_of_code_or_configs(tmp_path: Path) -> None:
    assert describe_commit(tmp_path) == "unknown"

    def git(*arguments: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *author, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "evorl").mkdir()
    (tmp_path / "evorl" / "code.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    commit = describe_commit(tmp_path)
    assert len(commit) == 40
    (tmp_path / "results").write_text("a result changes no code\n")
    assert describe_commit(tmp_path) == commit
    (tmp_path / "configs" / "experiment").mkdir(parents=True)
    (tmp_path / "configs" / "experiment" / "_results.json").write_text("{}\n")
    assert describe_commit(tmp_path) == commit
    (tmp_path / "evorl" / "code.py").write_text("x = 2\n")
    assert describe_commit(tmp_path) == f"{commit}+"
