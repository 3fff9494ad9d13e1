"""Learning curves of all settings of a sweep in one image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evorl.recorders.learning_curve import GRAY, label_axes, tidy
from evorl.recorders.pictures import white_figure, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Sequence[float], Sequence[float]]
MAX_NAMED = 20  # maximum number of settings in the legend, best first
MAX_WITHIN = 6  # maximum number of legend entries inside the plot


def draw_sweep(picture: Path | str, panels: Mapping[str, Mapping[str, Sequence[Curve]]]) -> bool:
    """Draw evaluation returns over environment steps: a color per setting, thin lines for runs, thick ones for means.

    Args:
        picture: path of the PNG to write.
        panels: plots by title, from top to bottom. Each maps names of settings, best first, to the curves
            ``(steps, returns)`` of the runs with this setting.

    Returns:
        True if the image was written; False if no setting has a curve.

    Raises:
        RunFolderError: the image cannot be written.
    """
    panels = {title: {name: runs for name, runs in panel.items() if runs} for title, panel in panels.items()}
    panels = {title: panel for title, panel in panels.items() if panel}
    if not panels:
        return False
    figure = white_figure(9.0, 4.4 * len(panels), layout="constrained")
    for position, (title, panel) in enumerate(panels.items(), start=1):
        _draw_panel(figure.add_subplot(len(panels), 1, position), title, panel)
    write_png(figure, picture)
    return True


def mean_curve(runs: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return environment steps between the first and last evaluations of all runs, and the mean return over runs.

    Each run is interpolated linearly at the steps of the other runs' evaluations.
    """
    steps = np.unique(np.concatenate([steps for steps, _ in runs]))
    first, last = max(min(steps) for steps, _ in runs), min(max(steps) for steps, _ in runs)
    steps = steps[(first <= steps) & (steps <= last)]
    return steps, np.mean([np.interp(steps, *run) for run in runs], axis=0)


def _draw_panel(axes: Axes, title: str, panel: Mapping[str, Sequence[Curve]]) -> None:
    from matplotlib import colormaps

    # Matplotlib's annotations lack the attribute ``colors`` of listed colormaps.
    colors = colormaps["tab10"].colors if len(panel) <= 10 else colormaps["viridis"](np.linspace(0, 0.95, len(panel)))  # pyright: ignore[reportAttributeAccessIssue]
    for (name, runs), color in zip(panel.items(), colors, strict=False):
        if len(runs) > 1:
            for steps, returns in runs:
                axes.plot(steps, returns, color=color, linewidth=0.7, alpha=0.4)
        mean_label = f" (mean of {len(runs)})" if len(runs) > 1 else ""
        steps, means = mean_curve(runs)
        marker = "o" if len(steps) <= 40 else None
        axes.plot(steps, means, color=color, linewidth=2.0, marker=marker, markersize=3, label=f"{name}{mean_label}")
    tidy(axes)
    label_axes(axes, "environment steps", "evaluation return", title)
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.legend(handles[:MAX_NAMED], labels[:MAX_NAMED], frameon=False, fontsize=8, labelcolor=GRAY)
    if len(labels) > MAX_WITHIN:
        legend.set_loc("upper left")
        legend.set_bbox_to_anchor((1.01, 1.0))
