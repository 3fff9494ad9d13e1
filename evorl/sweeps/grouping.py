"""Which settings of a sweep can share a program: those whose workflows differ in numbers alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evorl.workflows.side_by_side import numbers_side_by_side
from evorl.workflows.workflow import Workflow

Setting = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Group:
    """Settings of one structure.

    Attributes:
        workflow: of the first of them, built for one seed and one device.
        members: which of the sweep's settings they are, in order.
        paths: the numbers in which they may differ.
        numbers: the values of each, ``[M, D]``.
    """

    workflow: Workflow
    members: tuple[int, ...]
    paths: tuple[str, ...]
    numbers: tuple[tuple[float, ...], ...]


def grouped(settings: Sequence[Setting], build: Callable[[Setting], Workflow]) -> Iterator[Group]:
    """The groups of a sweep, each setting in one of them; ``build`` makes the workflow of a setting.

    Raises:
        ValueError: a value cannot be, in words.
    """
    left = dict(enumerate(settings))
    while left:
        first = next(iter(left.values()))
        workflow = build(first)
        paths = tuple(numbers_side_by_side(workflow, first))
        numbers = {}
        for member, setting in left.items():
            of_member = numbers_side_by_side(workflow, {path: setting[path] for path in paths})
            same = all(_same(setting[path], first[path]) for path in first if path not in paths)
            if same and len(of_member) == len(paths):
                numbers[member] = tuple(of_member[path] for path in paths)
        yield Group(workflow, tuple(numbers), paths, tuple(numbers.values()))
        left = {member: setting for member, setting in left.items() if member not in numbers}


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b
