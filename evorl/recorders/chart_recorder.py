"""Writes the charts that a workflow reports at the end of a run: tables as CSV, images as PNG."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evorl.recorders.learning_curve import BLUE, GRAY, GREEN, label_axes, tidy
from evorl.recorders.pictures import white_figure, write_png
from evorl.recorders.row_file import RowFile
from evorl.runs.recorder import Recorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from evorl.runs.recorder import Chart, HeatMap, Panel

PANEL_HEIGHT, HEAT_HEIGHT = 2.2, 5.2  # inches
EMPTY = "#eef0f3"  # color of empty cells in heat maps


class ChartRecorder(Recorder):
    """Writes ``<name>.csv`` and ``<name>.png`` for every chart; raises ``RunFolderError`` on failure."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def chart(self, name: str, chart: Chart) -> None:
        write_table(self.folder / f"{name}.csv", chart)
        draw_chart(self.folder / f"{name}.png", chart, title=name.replace("_", " "))


def write_table(path: Path | str, chart: Chart) -> None:
    """Write a chart's columns as CSV; floats have all digits, so that reading returns exactly the same numbers.

    Raises:
        RunFolderError: the file cannot be written.
    """
    rows: Iterable = zip(*(np.asarray(column).tolist() for column in chart.columns.values()), strict=True)
    RowFile(path).replace([",".join(chart.columns), *(",".join(map(repr, row)) for row in rows)])


def draw_chart(path: Path | str, chart: Chart, title: str = "") -> None:
    """Draw a chart as PNG, one panel below the other: dots with a line through the marked rows, or a heat map.

    Raises:
        RunFolderError: the image cannot be written.
    """
    heights = [HEAT_HEIGHT if panel.heat else PANEL_HEIGHT for panel in chart.panels]
    height = sum(heights) + 0.6
    figure = white_figure(8.0, height)
    grid = figure.add_gridspec(
        len(chart.panels), 1, left=0.11, right=0.96, top=1 - 0.35 / height, bottom=0.5 / height, hspace=0.45,
        height_ratios=heights,
    )  # fmt: skip
    for i, panel in enumerate(chart.panels):
        axes = figure.add_subplot(grid[i])
        if panel.heat is None:
            _draw_panel(axes, chart, panel)
        else:
            _draw_heat(axes, panel, panel.heat)
        if i == 0:
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color="#222222", parse_math=False)
    write_png(figure, path)


def _draw_heat(axes: Axes, panel: Panel, heat: HeatMap) -> None:
    ends = zip(heat.low, heat.high, heat.values.shape, strict=True)
    edges = [np.linspace(low, high, num + 1) for low, high, num in ends]
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(heat.values.T), cmap="viridis")
    bar: Any = axes.figure.colorbar(mesh, ax=axes)
    bar.set_label(heat.label, fontsize=8, color=GRAY)
    bar.ax.tick_params(colors=GRAY, labelsize=8)
    bar.outline.set_visible(False)
    tidy(axes)
    axes.set_facecolor(EMPTY)
    axes.grid(visible=False)
    axes.margins(0)
    axes.set_title(f"{np.isfinite(heat.values).mean():.0%} filled", loc="right", fontsize=8, color=GRAY)
    label_axes(axes, panel.x, panel.y, size=8)


def _draw_panel(axes: Axes, chart: Chart, panel: Panel) -> None:
    x, y = (np.asarray(chart.columns[name], np.float64) for name in (panel.x, panel.y))
    shown = np.isfinite(x) & np.isfinite(y)
    if panel.color is None:
        axes.plot(x[shown], y[shown], ".", color=BLUE, markersize=3, alpha=0.35)
    else:
        by = np.asarray(chart.columns[panel.color], np.float64)
        points = axes.scatter(x[shown], y[shown], c=by[shown], s=9, cmap="viridis", linewidths=0)
        axes.figure.colorbar(points, ax=axes, label=panel.color)
    if panel.marked is not None:
        shown &= np.asarray(chart.columns[panel.marked]) != 0
        axes.plot(x[shown], y[shown], color=GREEN, linewidth=1.8)
    if panel.log:
        axes.set_yscale("log")
    tidy(axes)
    label_axes(axes, panel.x, panel.y, size=8)
