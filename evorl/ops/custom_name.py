"""Names of user-defined functions as field values of config nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CustomName(str):
    """Name of a user-defined function in a config, ``"package.module:function"``, with the function itself.

    A field accepts such names, in addition to its other values, if its annotation includes this type. Two such names
    are equal if their functions are, too: a notebook may redefine a function, and programs compiled with the old one
    must not be used again.
    """

    function: Callable[..., Any]

    def __new__(cls, name: str, function: Callable[..., Any]) -> CustomName:
        """Return ``name`` with the function that was imported for it."""
        self = super().__new__(cls, name)
        self.function = function
        return self

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) is True and self.function == getattr(other, "function", self.function)

    def __ne__(self, other: object) -> bool:  # otherwise that of ``str``, which ignores the function
        return not self == other

    __hash__ = str.__hash__
