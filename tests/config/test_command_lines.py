"""Words of proposed command lines are quoted for a shell; see ``tests/cli/test_proposed_lines.py`` for whole lines."""

from __future__ import annotations

import shlex
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from evorl.config.command_lines import as_arguments, shell_word, user_path


@hypothesis.given(strategies.text(min_size=1))
def test_a_shell_reads_the_words_that_went_in(text: str) -> None:
    assert shlex.split(as_arguments({"resume": text, "trust": "true"})) == [f"resume={text}", "trust=true"]
    assert shlex.split(shell_word(text)) == [text]


def test_a_home_folder_is_found_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/runs") == tmp_path / "runs"
    assert user_path("~no-such-user/x") == Path("~no-such-user/x")
    assert user_path(Path("a b")) == Path("a b")
