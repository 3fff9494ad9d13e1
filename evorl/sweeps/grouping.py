"""Groups the settings of a sweep: settings whose workflows differ only in numbers share a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evorl.workflows.side_by_side import numbers_side_by_side
from evorl.workflows.workflow import Workflow

Setting = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Group:
    """Settings that share a program.

    Attributes:
        workflow: workflow of the first setting, built for one seed and one device.
        members: indices of the M settings in the sweep, sorted.
        paths: dotted paths of the D numbers in which the settings may differ.
        numbers: values of these numbers for each setting, ``[M, D]``.
    """

    workflow: Workflow
    members: tuple[int, ...]
    paths: tuple[str, ...]
    numbers: tuple[tuple[float, ...], ...]


def grouped(settings: Sequence[Setting], build: Callable[[Setting], Workflow]) -> Iterator[Group]:
    """Yield the groups of a sweep's settings that share a program; ``build`` creates a setting's workflow.

    Raises:
        ValueError: a value of a setting is invalid.
    """
    left = dict(enumerate(settings))
    while left:
        first = next(iter(left.values()))
        workflow = build(first)
        paths = tuple(numbers_side_by_side(workflow, first))
        numbers = {}
        for member, setting in left.items():
            of_member = numbers_side_by_side(workflow, {path: setting[path] for path in paths})
            pairs = [(setting[path], first[path]) for path in first if path not in paths]
            if all(type(a) is type(b) and a == b for a, b in pairs) and len(of_member) == len(paths):
                numbers[member] = tuple(of_member[path] for path in paths)
        yield Group(workflow, tuple(numbers), paths, tuple(numbers.values()))
        left = {member: setting for member, setting in left.items() if member not in numbers}
