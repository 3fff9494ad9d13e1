"""Values of settings: types, ranges, and errors with the setting's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from evorl.config.values import (
    check_names,
    checked_mapping,
    checked_num_atoms,
    checked_value,
    declared_ranges,
    positive,
)
from evorl.fields import Within
from evorl.types import PyTreeNode
from tests.support.errors import raises_naming


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
        ({"a": 1}, Mapping, {"a": 1}),
        (None, Mapping, {}),
    ],
)
def test_a_value_becomes_the_type_of_its_field(value: Any, annotation: Any, expected: Any) -> None:
    result = checked_value(value, annotation, "x")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "within", "parts"),
    [
        ("a", int, None, ("a.b", "positive", "got 'a'")),
        (0, int, None, ("positive", "got 0")),
        (1.5, int, None, ("integer", "got 1.5")),
        (True, int, None, ("integer", "got True")),
        (float("inf"), int, None, ("integer", "got inf")),
        (None, int, None, ("integer", "got null")),
        ("a", float, None, ("a.b", "number", "got 'a'")),
        (float("nan"), float, None, ("number", "got nan")),
        (float("inf"), float, None, ("number", "got inf")),
        (1.01, float | None, "[0, 1]", ("number", "[0, 1]", "got 1.01")),
        (-1, float, "[0, inf)", ("at least 0", "got -1")),
        (0.0, float, "(0, inf)", ("above 0", "got 0.0")),
        (1, bool, None, ("true or false", "got 1")),
        (3, str | None, None, ("name", "got 3")),
        ([3], Mapping, None, ("a.b", "mapping", "got [3]")),
        ("adm", Literal["adam", "sgd"], None, ("a.b", "adam, sgd", "got 'adm'", "'adam'")),
    ],
)
def test_another_is_refused_in_words(value: Any, annotation: Any, within: str | None, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        checked_value(value, annotation, "a.b", within)


def test_ranges_are_inherited_and_overridden() -> None:
    class Base(PyTreeNode):
        share: Annotated[float, Within("[0, 1]")] = 0.5
        rate: Annotated[float | None, Within("[0, inf)")] = 0.1
        free: float = 1.0

    class Derived(Base):
        share: float = 0.7
        rate: Annotated[float | None, Within("(0, inf)")] = 0.1

    assert declared_ranges(Derived) == {"share": "[0, 1]", "rate": "(0, inf)"}


def test_mappings_and_names() -> None:
    assert checked_mapping(None, "optimizer") == {}
    with raises_naming(ValueError, "optimizer", "mapping", "got 'adam'"):
        checked_mapping("adam", "optimizer")
    with raises_naming(ValueError, "'discont'", "'discount'"):
        check_names(["discont"], ["discount", "tau"], "key")
    assert positive(1e3, "n") == 1000


def test_the_number_of_atoms_goes_with_the_kind_of_values() -> None:
    assert checked_num_atoms(None, "expected", -1.0, 1.0) is None
    assert checked_num_atoms(51.0, "categorical", -1, 1) == 51
    assert checked_num_atoms(1, "quantile", 1.0, -1.0) == 1  # quantiles use no grid


@pytest.mark.parametrize(
    ("num_atoms", "values", "high", "parts"),
    [
        (None, "quantile", 1.0, ("num_atoms=null", "agent.values=quantile")),
        (3, "expected", 1.0, ("num_atoms=3", "agent.values=expected")),
        (1, "categorical", 1.0, ("num_atoms", "at least 2")),
        (-3, "categorical", 1.0, ("agent.num_atoms", "got -3")),
        (3, "categorical", -1.0, ("support_low=-1", "agent.support_high=-1")),
        (3, "categorical", "much", ("agent.support_high", "number", "got 'much'")),
    ],
)
def test_others_are_refused_in_words(num_atoms: Any, values: str, high: Any, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        checked_num_atoms(num_atoms, values, -1.0, high)
