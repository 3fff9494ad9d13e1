"""The name of a function of the user's own, as a field of a node holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OwnName(str):
    """Name of a user's function in a config, ``"package.module:function"``, with the function that it stands for.

    In a field's annotation it says that the field takes such a name beside its other values.
    """

    function: Callable[..., Any]

    def __new__(cls, name: str, function: Callable[..., Any]) -> OwnName:
        """The name of a function that was imported."""
        self = super().__new__(cls, name)
        self.function = function
        return self
