"""Arrays of choices, as a space."""

from __future__ import annotations

from typing import Any

import numpy as np

from evorl.envs.box_bounds import require_int32
from evorl.envs.space import Box


class MultiDiscrete(Box):
    """Arrays of choices: entry i is one of the ``nvec[i]`` integers from ``start[i]`` on, int32.

    A ``Box`` of whole numbers whose entries are labels, not amounts: networks see each one-hot encoded.

    Args:
        nvec: the number of choices of each entry; its shape is that of an element.
        start: the first choice of each entry, a number or an array that broadcasts to ``nvec``.

    Raises:
        ValueError: an entry has no choice, or an element does not fit into int32.
    """

    def __init__(self, nvec: Any, start: Any = 0) -> None:
        self.nvec = np.array(nvec, np.int64)
        first = np.broadcast_to(np.asarray(start, np.int64), self.nvec.shape)
        if np.any(self.nvec < 1):
            raise ValueError(f"MultiDiscrete needs at least one choice in each entry, got nvec={self.nvec.tolist()}.")
        require_int32("MultiDiscrete", first, first + self.nvec - 1)
        super().__init__(first, first + self.nvec - 1, self.nvec.shape, np.int32)
        self.nvec.setflags(write=False)

    @property
    def start(self) -> np.ndarray:
        """The first choice of each entry."""
        return self.low

    def __repr__(self) -> str:
        start = f", start={self.low.tolist()}" if self.low.any() else ""
        return f"MultiDiscrete({self.nvec.tolist()}{start})"
