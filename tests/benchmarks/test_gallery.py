"""Images of an archive that fills."""

from __future__ import annotations

import numpy as np

from benchmarks.gallery import draw

EMPTY = np.array([216, 220, 226])


def test_filled_cells_are_colored_at_their_descriptors() -> None:
    fitness = np.full(256, -np.inf)
    nothing = draw(100, fitness, 0.0, 1.0)
    fitness[15 * 16] = 0.5  # largest cosine, most negative velocity
    one = draw(100, fitness, 0.0, 1.0)
    assert nothing.shape == one.shape == (240, 300, 3)
    assert (nothing[150, 250] == EMPTY).all()
    changed = np.argwhere((one[40:185, 50:280] != nothing[40:185, 50:280]).any(axis=-1)) + [40, 50]
    rows, columns = changed.T
    assert rows.min() > 170  # at the bottom
    assert columns.min() > 260  # on the right
