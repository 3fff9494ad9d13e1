"""Sources that ask JAX for the platform, or that ask for it only once although programs are for several platforms."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_OF_JAX = ("default_backend", "get_backend", "platform_dependent")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def asks_jax(source: str) -> list[int]:
    """Return the lines that refer to JAX's functions of the platform, or to the attribute ``platform`` of a device."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute | ast.alias) and _name(node) in _OF_JAX)
        or (isinstance(node, ast.Attribute) and node.attr == "platform" and ast.unparse(node.value) != "sys")
    ]


def asks_once(source: str) -> list[int]:
    """Return the lines that call ``on_cpu`` or ``platform`` on import, or in a function whose results are cached."""
    return [
        node.lineno
        for node in _runs_once(ast.parse(source))
        if isinstance(node, ast.Call) and _name(node.func) in ("on_cpu", "platform")
    ]


def _runs_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run on import, and all of cached functions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _FUNCTIONS):
            yield from _runs_once(child)
            continue
        decorators = getattr(child, "decorator_list", [])
        if any(_name(part) in ("cache", "lru_cache") for decorator in decorators for part in ast.walk(decorator)):
            yield from ast.walk(child)
        else:
            for part in (*decorators, child.args):
                yield from _runs_once(part)


def _name(node: ast.AST) -> str:
    """Return the last part of a name."""
    return next((str(getattr(node, name)) for name in ("id", "attr", "name") if hasattr(node, name)), "")
