"""Names of user-defined functions as field values of config nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CustomName(str):
    """Name of a user-defined function in a config, ``"package.module:function"``, with the function itself.

    A field accepts such names, in addition to its other values, if its annotation includes this type.
    """

    function: Callable[..., Any]

    def __new__(cls, name: str, function: Callable[..., Any]) -> CustomName:
        """Return ``name`` with the function that was imported for it."""
        self = super().__new__(cls, name)
        self.function = function
        return self
