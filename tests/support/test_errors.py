"""The check of errors by parts detects missing parts."""

from __future__ import annotations

import ast

import pytest

from tests.support.errors import assert_names, matched_sentences, missing_parts, raises_naming


def refuse() -> None:
    raise ValueError("num_envs must be at least 1,\n  got 0; choose env.num_envs=1")


def test_parts_are_found_in_any_case_and_across_lines():
    with raises_naming(ValueError, "NUM_ENVS", 0, "at least 1, got 0") as raised:
        refuse()
    assert raised.type is ValueError


def test_a_missing_part_fails():
    with pytest.raises(AssertionError, match=r"\['num_steps'\]"), raises_naming(ValueError, "num_envs", "num_steps"):
        refuse()


def test_another_error_is_not_caught():
    with pytest.raises(ValueError, match="num_envs"), raises_naming(TypeError, "num_envs"):
        refuse()


def test_without_parts_it_would_check_nothing():
    with pytest.raises(AssertionError, match="at least one part"), raises_naming(ValueError):
        refuse()


def test_what_a_text_lacks():
    assert missing_parts("Set num_envs=1\n  or more.", "num_envs=1 OR more", "num_steps", 2) == ["num_steps", "2"]
    with pytest.raises(AssertionError, match="at least one part"):
        missing_parts("num_envs")


@pytest.mark.parametrize(
    ("match", "sentences"),
    [
        ("'num_envs must be a number'", []),
        ("'num_envs.* must be at least one, got 0'", ["must be at least one, got"]),
        ("rf'{name} makes four steps only once'", ["makes four steps only once"]),
        ("'one two three four'", []),
        (r"r'obs .*\[3\], expected \[4\]'", []),
        ("said", []),
    ],
)
def test_sentences_are_found(match: str, sentences: list[str]):
    tree = ast.parse(f"with raises(ValueError,\n  match={match}): pass")
    assert matched_sentences(tree) == [(words, 1) for words in sentences]


def test_printed_texts_are_checked_alike():
    assert_names("Error: num_envs=0\nis too small", "NUM_ENVS=0 is")
    with pytest.raises(AssertionError, match=r"\['num_steps'\]"):
        assert_names("Error: num_envs=0", "num_envs", "num_steps")
    with pytest.raises(AssertionError, match="at least one part"):
        assert_names("Error: num_envs=0")
