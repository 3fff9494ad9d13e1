"""Damage to JSON: every entry without it, or with another value."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

MISSING = "missing"
VALUES: tuple[Any, ...] = (MISSING, None, [], {}, "", "abc", "\x1b]0;x\x07", -1, 0, 2.5, True, 1e300, 10**400, [[1]])
VALUES += ({"a": {"b": 1}}, [None], "$\\frac{$")


def places(node: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every entry of JSON, at any depth."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in entries:
        yield (key,)
        yield from ((key, *path) for path in places(value))


def changed(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of JSON with another value in a place, or without it."""
    node = copy.deepcopy(node)
    parent = node
    for key in path[:-1]:
        parent = parent[key]
    if value is MISSING:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return node
