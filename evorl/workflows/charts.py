"""Tables that describe the end of a run, and how to draw them: what a workflow says, and recorders write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from evorl.suggestions import no_such


@dataclasses.dataclass(frozen=True)
class Panel:
    """One picture of a table: a point for each row.

    Attributes:
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        marked: a column that is not 0 in the rows to be joined by a line; ``None`` for no line.
        log: whether the vertical axis is logarithmic.
        colour: a column that the points are coloured by; ``None`` for one colour.
    """

    x: str
    y: str
    marked: str | None = None
    log: bool = False
    colour: str | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """A table and its pictures.

    Attributes:
        columns: by name, all of one length ``[N]``.
        panels: drawn below one another.

    Raises:
        ValueError: columns differ in length, or a panel names one that is not there.
    """

    columns: Mapping[str, np.ndarray]
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a chart are of one length, got {lengths}.")
        for panel in self.panels:
            for name in filter(None, (panel.x, panel.y, panel.marked, panel.colour)):
                if name not in self.columns:
                    raise ValueError(no_such("column", name, self.columns))


def for_each_seed(name: str, num_seeds: int | None, chart_of: Callable[[Any], Chart]) -> dict[str, Chart]:
    """Charts ``name_seed_i``, made by ``chart_of(i)``; without an axis of seeds ``name``, made by ``chart_of(...)``."""
    if num_seeds is None:
        return {name: chart_of(...)}
    return {f"{name}_seed_{i}": chart_of(i) for i in range(num_seeds)}
