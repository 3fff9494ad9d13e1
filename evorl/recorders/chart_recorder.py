"""What a workflow tells of the end of a run: a table as CSV, and its pictures as PNG."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evorl.recorders.learning_curve import BLUE, GREEN, GREY, tidy
from evorl.recorders.row_file import RowFile
from evorl.runs.files import open_to_write, writing_to
from evorl.runs.recording import Recorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evorl.runs.recording import Chart, Panel

PANEL_HEIGHT = 2.2


class ChartRecorder(Recorder):
    """Writes ``<name>.csv`` and ``<name>.png`` for every chart.

    Args:
        folder: where.

    Raises:
        RunFolderError: the disk is full or read-only.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def chart(self, name: str, chart: Chart) -> None:
        write_table(self.folder / f"{name}.csv", chart)
        draw_chart(self.folder / f"{name}.png", chart, title=name.replace("_", " "))


def write_table(path: Path | str, chart: Chart) -> None:
    """A chart's columns as CSV; floats are written so that reading them gives the same bits.

    Raises:
        RunFolderError: the file cannot be written.
    """
    rows: Iterable = zip(*(np.asarray(column).tolist() for column in chart.columns.values()), strict=True)
    RowFile(path).replace([",".join(chart.columns), *(",".join(map(repr, row)) for row in rows)])


def draw_chart(path: Path | str, chart: Chart, title: str = "") -> None:
    """A chart's panels below one another, PNG: a dot for each row, a line through the rows that are marked.

    Raises:
        RunFolderError: the picture cannot be written.
    """
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells when it builds its font cache
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = PANEL_HEIGHT * len(chart.panels) + 0.6
    figure = Figure(figsize=(8.0, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        len(chart.panels), 1, left=0.11, right=0.96, top=1 - 0.35 / height, bottom=0.5 / height, hspace=0.45
    )
    for i, panel in enumerate(chart.panels):
        axes = figure.add_subplot(grid[i])
        _draw_panel(axes, chart, panel)
        if i == 0:
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color="#222222")
    with writing_to(Path(path).parent), open_to_write(path, "wb") as file:
        figure.savefig(file, format="png")


def _draw_panel(axes: Axes, chart: Chart, panel: Panel) -> None:
    x, y = (np.asarray(chart.columns[name], np.float64) for name in (panel.x, panel.y))
    shown = np.isfinite(x) & np.isfinite(y)
    if panel.colour is None:
        axes.plot(x[shown], y[shown], ".", color=BLUE, markersize=3, alpha=0.35)
    else:
        by = np.asarray(chart.columns[panel.colour], np.float64)
        points = axes.scatter(x[shown], y[shown], c=by[shown], s=9, cmap="viridis", linewidths=0)
        axes.figure.colorbar(points, ax=axes, label=panel.colour)
    if panel.marked is not None:
        shown &= np.asarray(chart.columns[panel.marked]) != 0
        axes.plot(x[shown], y[shown], color=GREEN, linewidth=1.8)
    if panel.log:
        axes.set_yscale("log")
    tidy(axes)
    axes.set_xlabel(panel.x, fontsize=8, color=GREY)
    axes.set_ylabel(panel.y, fontsize=8, color=GREY)
