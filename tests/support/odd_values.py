"""Values that a client may send in any field of a message: numbers of all sizes, and invalid ones."""

from __future__ import annotations

import math
from typing import Any

ODD: list[Any] = [0, -1, -5, 0.5, 1e-300, 5e-324, 1e16, 1e299, -1e299, 1e308, 3.5e38, 2**31, 2**32, 2**53, 2**53 + 1]
ODD += [2**63, 10**400, -(10**400), math.inf, -math.inf, math.nan, True, False, None]
ODD += ["1", "nan", "", "\ud800", "x" * 300, [], [1], [[1]], [10**400], {}, {"a": 1}, {"n": 10**400}]


def label(value: Any) -> str:
    """Return a short name of a value, for test ids."""
    return ascii(value)[:12]
