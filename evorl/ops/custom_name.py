"""Names of user-defined functions as field values of config nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CustomName(str):
    """Name of a user-defined function in a config, ``"package.module:function"``, with the function itself.

    In a field's annotation, this type allows such a name in addition to the other values.
    """

    function: Callable[..., Any]

    def __new__(cls, name: str, function: Callable[..., Any]) -> CustomName:
        """Return the name of an imported function."""
        self = super().__new__(cls, name)
        self.function = function
        return self
