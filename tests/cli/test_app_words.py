"""Short flags of the app commands."""

from __future__ import annotations

import pytest

from evorl.cli.app_words import without_flags
from tests.support.errors import raises_naming

FLAGS = {"-a": "algorithm", "--algorithm": "algorithm", "-n": "n", "--exploit": "exploit=true"}


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [
        ([], []),
        (["app", "-a", "ppo"], ["app", "algorithm=ppo"]),
        (["--algorithm=ppo", "app"], ["algorithm=ppo", "app"]),
        (["all", "-n", "3", "--exploit"], ["all", "n=3", "exploit=true"]),
        (["--exploit=false", "x=1", "-z"], ["exploit=false", "x=1", "-z"]),
    ],
)
def test_flags_are_options_by_another_name(arguments: list[str], plain: list[str]) -> None:
    assert without_flags(arguments, FLAGS) == plain


def test_a_flag_without_its_value_is_told() -> None:
    with raises_naming(ValueError, "-a needs a value", "algorithm="):
        without_flags(["app", "-a"], FLAGS)
