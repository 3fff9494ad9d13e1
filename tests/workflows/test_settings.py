"""Values of settings: each type and range, said in words with the setting's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from evorl.types import PyTreeNode
from evorl.workflows.settings import check_names, checked_mapping, checked_value, declared_ranges, positive


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1e6, int, 1_000_000),
        (np.int64(3), int, 3),
        (3, float, 3.0),
        (None, int | None, None),
        (2.0, int | None, 2),
        (None, float | None, None),
        (True, bool, True),
        ("adam", Literal["adam", "sgd"], "adam"),
        ("key", str | None, "key"),
        ([1, 2], Any, [1, 2]),
        ("auto", int | str, "auto"),
    ],
)
def test_a_value_becomes_the_type_of_its_field(value: Any, annotation: Any, expected: Any) -> None:
    result = checked_value(value, annotation, "x")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "within", "said"),
    [
        ("a", int, None, "a.b must be a positive whole number, got 'a'"),
        (0, int, None, "a positive whole number, got 0"),
        (1.5, int, None, "a positive whole number, got 1.5"),
        (True, int, None, "a positive whole number, got True"),
        (float("inf"), int, None, "a positive whole number, got inf"),
        (None, int, None, "a positive whole number, got null"),
        ("a", float, None, "a.b must be a number, got 'a'"),
        (float("nan"), float, None, "must be a number, got nan"),
        (float("inf"), float, None, "must be a number, got inf"),
        (1.01, float | None, "[0, 1]", r"must be a number in \[0, 1\], got 1.01"),
        (-1, float, "[0, inf)", "must be a number of at least 0, got -1"),
        (0.0, float, "(0, inf)", "must be a number above 0, got 0.0"),
        (1, bool, None, "must be true or false, got 1"),
        (3, str | None, None, "must be a name, got 3"),
        ("adm", Literal["adam", "sgd"], None, r"a.b is one of adam, sgd; got 'adm'\. Did you mean 'adam'\?"),
    ],
)
def test_another_is_refused_in_words(value: Any, annotation: Any, within: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_value(value, annotation, "a.b", within)


def test_ranges_are_inherited_and_overridden() -> None:
    class Base(PyTreeNode):
        share: float = 0.5
        rate: float = 0.1
        ranges: ClassVar[Mapping[str, str]] = {"share": "[0, 1]", "rate": "[0, inf)"}

    class Derived(Base):
        ranges: ClassVar[Mapping[str, str]] = {"rate": "(0, inf)"}

    assert declared_ranges(Derived) == {"share": "[0, 1]", "rate": "(0, inf)"}


def test_mappings_and_names() -> None:
    assert checked_mapping(None, "optimizer") == {}
    with pytest.raises(ValueError, match="optimizer must be a mapping from settings to values, got 'adam'"):
        checked_mapping("adam", "optimizer")
    with pytest.raises(ValueError, match=r"Unknown key 'discont': did you mean 'discount'\?"):
        check_names(["discont"], ["discount", "tau"], "key")
    assert positive(1e3, "n") == 1000
