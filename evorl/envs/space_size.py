"""Limits the size of spaces: shapes are checked before their arrays are allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_NUMBERS = 2**28  # maximum size of one observation or action: 1 GB of float32


def check_size(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape; raise ``ValueError`` for a negative axis, or for more numbers than ``MAX_NUMBERS``."""
    if any(size < 0 for size in shape):
        raise ValueError(f"axes of a shape must be at least 0, got {list(shape)}.")
    if math.prod(shape) > MAX_NUMBERS:
        raise ValueError(
            f"a shape of {list(shape)} has {math.prod(shape):,} numbers, more than the limit of {MAX_NUMBERS:,}: use "
            "smaller axes."
        )
    return tuple(shape)
