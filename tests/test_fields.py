"""Fields of nodes: intervals next to the annotation, without effect on whether a field is static."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated

import jax
import numpy as np
import pytest

from evorl.fields import Within
from evorl.types import PyTreeNode
from tests.support.errors import raises_naming


class Settings(PyTreeNode):
    share: Annotated[float, Within("[0, 1]")] = 0.5
    count: Annotated[int, Within("[1, 9]")] = 2
    free: float = 1.0


def test_an_interval_does_not_change_whether_a_field_is_static() -> None:
    static = {field.name: field.metadata.get("static", False) for field in dataclasses.fields(Settings)}
    assert static == {"share": False, "count": True, "free": False}


def test_generic_forms_of_static_types_are_static() -> None:
    class Node(PyTreeNode):
        cls: type[int] = int
        any_cls: typing.Type[Exception] | None = None  # noqa: UP006  # the older form, which users may write
        dtype: np.dtype[np.float32] = np.dtype(np.float32)
        numbers: list[int] | None = None

    static = {field.name: field.metadata.get("static", False) for field in dataclasses.fields(Node)}
    assert static == {"cls": True, "any_cls": True, "dtype": True, "numbers": False}
    assert jax.jit(lambda node: node)(Node(cls=bool)).cls is bool


@pytest.mark.parametrize("interval", ["[0, 1]", "(0, inf)", "(-inf, 3)", "[2, 2]", "(0, 0.5]"])
def test_intervals(interval: str) -> None:
    assert Within(interval).interval == interval


@pytest.mark.parametrize(
    "interval", ["", "0, 1", "[0 1]", "[0, 1", "[1, 0]", "(1, 1]", "[a, b]", "[0, 1, 2]", "{0, 1}"]
)
def test_malformed_intervals_are_refused(interval: str) -> None:
    with raises_naming(ValueError, "(0, 1]", repr(interval)):
        Within(interval)
