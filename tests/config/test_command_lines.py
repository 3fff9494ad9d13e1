"""Arguments of proposed command lines are quoted for a shell; see ``tests/cli/test_proposed_lines.py``
for whole lines.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import hypothesis
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import strategies

from evorl.config.command_lines import as_arguments, as_override, quote, shell_word, unquote, user_path


@hypothesis.given(strategies.text(min_size=1))
def test_a_shell_reads_the_words_that_went_in(text: str) -> None:
    assert shlex.split(as_arguments({"resume": text, "trust": "true"})) == [f"resume={text}", "trust=true"]
    assert shlex.split(shell_word(text)) == [text]


def test_a_home_folder_is_found_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/runs") == tmp_path / "runs"
    assert user_path("~no-such-user/x") == Path("~no-such-user/x")
    assert user_path(Path("a b")) == Path("a b")


def parsed(override: str) -> object:
    return OverridesParser.create().parse_override(override).value()


@hypothesis.given(strategies.text(strategies.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
def test_quoted_text_is_read_back(text: str) -> None:
    assert parsed(f"key={quote(text)}") == text
    assert parsed(f"key={as_override(text)}") == text
    assert unquote(quote(text)) == text
