"""Functions, and methods of nodes, as one program each: eager operations would each be compiled separately."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from evorl.types import PyTreeNode


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` as one program, cached per function; integers, strings and functions among its arguments are
    static.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        positions = tuple(i for i, value in enumerate(arguments) if _is_structure(value))
        names = tuple(name for name, value in named.items() if _is_structure(value))
        return _program(function, positions, names)(*arguments, **named)

    return run


class Whole:
    """A node whose methods are each one program; nodes of equal structure share them."""

    def __init__(self, node: PyTreeNode) -> None:
        self.node = node

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.node, name)
        return functools.partial(whole(_method(name)), self.node) if callable(value) else value


@functools.cache
def _method(name: str) -> Callable[..., Any]:
    return lambda node, *arguments, **named: getattr(node, name)(*arguments, **named)


@functools.cache
def _program(function: Callable[..., Any], positions: tuple[int, ...], names: tuple[str, ...]) -> Callable[..., Any]:
    return jax.jit(function, static_argnums=positions, static_argnames=names)


def _is_structure(value: Any) -> bool:
    """Return True for static arguments; callable nodes are data."""
    return isinstance(value, (int, str)) or (callable(value) and not isinstance(value, PyTreeNode))
