"""Arrays of choices, as a space."""

from __future__ import annotations

from typing import Any

import numpy as np

from evorl.envs.box_bounds import require_int32
from evorl.envs.space import Box


class MultiDiscrete(Box):
    """Arrays of choices: entry i is one of the ``sizes[i]`` integers from ``start[i]`` on, int32.

    A ``Box`` of whole numbers whose entries are labels, not amounts: networks see each one-hot encoded.

    Args:
        sizes: the number of choices of each entry; its shape is that of an element.
        start: the first choice of each entry, a number or an array that broadcasts to ``sizes``.

    Raises:
        ValueError: an entry has no choice, or an element does not fit into int32.
    """

    def __init__(self, sizes: Any, start: Any = 0) -> None:
        self.sizes = np.array(sizes, np.int64)
        first = np.broadcast_to(np.asarray(start, np.int64), self.sizes.shape)
        if np.any(self.sizes < 1):
            raise ValueError(f"MultiDiscrete needs at least one choice in each entry, got sizes={self.sizes.tolist()}.")
        require_int32("MultiDiscrete", first, first + self.sizes - 1)
        super().__init__(first, first + self.sizes - 1, self.sizes.shape, np.int32)
        self.sizes.setflags(write=False)

    @property
    def start(self) -> np.ndarray:
        """The first choice of each entry."""
        return self.low

    def __repr__(self) -> str:
        start = f", start={self.low.tolist()}" if self.low.any() else ""
        return f"MultiDiscrete({self.sizes.tolist()}{start})"
