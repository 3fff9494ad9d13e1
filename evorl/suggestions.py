"""What a name was perhaps meant to be: for errors in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, valid: Iterable[object]) -> str:
    """`` Did you mean 'relu'?`` for the nearest valid name, with a leading space; empty if none is near."""
    nearest = difflib.get_close_matches(str(name), [str(option) for option in valid], n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def no_such(what: str, name: object, valid: Iterable[object]) -> str:
    """``there is no torso 'natur'. Did you mean 'nature'? There are: minatar, nature.``"""
    valid = [str(option) for option in valid]
    return f"there is no {what} {name!r}.{did_you_mean(name, valid)} There are: {', '.join(valid)}."
