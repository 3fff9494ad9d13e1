"""The check of errors by parts detects missing parts."""

from __future__ import annotations

import pytest

from tests.support.errors import raises_naming


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
