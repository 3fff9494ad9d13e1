"""Numbers of a node that are structure, so that changing them changes the program."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

from evorl.types import PyTreeNode


def nodes_of(node: PyTreeNode) -> Iterator[PyTreeNode]:
    """A node and all those among its data."""
    yield node
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, PyTreeNode) and not field.metadata.get("static"):
            yield from nodes_of(value)


def static_fractions(node: PyTreeNode) -> set[str]:
    """The names of the fields that take fractions and are static all the same."""
    found = set()
    for part in nodes_of(node):
        hints = typing.get_type_hints(type(part))
        for field in dataclasses.fields(part):
            if field.metadata.get("static") and float in (hints[field.name], *typing.get_args(hints[field.name])):
                found.add(field.name)
    return found
