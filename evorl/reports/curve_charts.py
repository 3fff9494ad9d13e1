"""Charts over environment steps: returns with their interval, the learner's metrics, and the speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

import numpy as np

from evorl.recorders.learning_curve import MAX_SMALL, label_axes, tidy
from evorl.recorders.run_status import learner_metrics
from evorl.reports.comparison import Group, band_of, thinned
from evorl.reports.recorded_run import Curve
from evorl.reports.svg import COLORS, as_svg, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 40  # maximum number of seeds or runs drawn per group
_DASHES = ("-", "--", ":", "-.")
_STEPS = "environment steps of each seed"


def style_of(index: int) -> tuple[str, str]:
    """Return color and line style of the group with this index."""
    return COLORS[index % len(COLORS)], _DASHES[index // len(COLORS) % len(_DASHES)]


def draw_returns(groups: Sequence[Group], styles: Mapping[str, tuple[str, str]], name: str) -> Element:
    """Draw the metric of groups: a thin line per seed, a thick line for the interquartile mean, a shaded 95 % interval.

    Args:
        groups: groups in one environment.
        styles: color and line style by label.
        name: name of the chart, unique on the page.
    """
    metric = groups[0].metric
    with figure_of(7.2, 3.9) as figure:
        axes = figure.add_axes((0.095, 0.135, 0.875, 0.775))
        for group in groups:
            color, dash = styles[group.label]
            for curve in group.curves[:MAX_LINES] if len(group.curves) > 1 else ():
                axes.plot(*_drawn(curve), color=color, linewidth=0.7, alpha=0.35)
            band = band_of(group.curves)
            axes.fill_between(band.steps, band.low, band.high, color=color, alpha=0.2, linewidth=0)
            marker = "o" if len(band.steps) <= 2 else None
            axes.plot(band.steps, band.center, color=color, linestyle=dash, linewidth=2.0, marker=marker)
        label_chart(axes, groups[0].env, _STEPS, describe_metric(metric))
        about = (
            f"{describe_metric(metric)} over {_STEPS} in {groups[0].env}: {', '.join(group.label for group in groups)}"
        )
        return as_svg(figure, name, about)


def draw_metrics(groups: Sequence[Group], styles: Mapping[str, tuple[str, str]], name: str) -> Element | None:
    """Draw small charts of up to ``MAX_SMALL`` metrics of the learner, losses first; return ``None`` without metrics.

    Args:
        groups: groups of one algorithm in one environment.
        styles: color and line style by label.
        name: name of the chart, unique on the page.
    """
    columns = dict.fromkeys(column for group in groups for run in group.runs for column in run.curves)
    shown = learner_metrics(columns)[:MAX_SMALL]
    if not shown:
        return None
    rows = -(-len(shown) // 3)
    with figure_of(7.2, 1.75 * rows + 0.2) as figure:
        height = 1.75 * rows + 0.2
        grid = figure.add_gridspec(
            rows, 3, left=0.075, right=0.985, top=1 - 0.25 / height, bottom=0.42 / height, wspace=0.3, hspace=0.5
        )
        for i, column in enumerate(shown):
            axes = figure.add_subplot(grid[i // 3, i % 3])
            for group in groups:
                color, dash = styles[group.label]
                for run in group.runs[:MAX_LINES]:
                    if column in run.curves:
                        curve = run.curves[column]
                        axes.plot(*_drawn(curve), color=color, linestyle=dash, linewidth=0.9, alpha=0.8)
            label_chart(
                axes, column.removeprefix("train/").replace("_", " "), "steps" if i >= len(shown) - 3 else "", "", 7
            )
            axes.locator_params(nbins=4)
        return as_svg(figure, name, f"The learner's metrics: {', '.join(shown)}")


def draw_speeds(groups: Sequence[Group], styles: Mapping[str, tuple[str, str]], name: str) -> Element | None:
    """Draw environment steps per second, one line per run; return ``None`` if no run recorded them."""
    timed = [(group, run.timings["time/steps_per_second"]) for group in groups for run in group.runs[:MAX_LINES]
             if "time/steps_per_second" in run.timings]  # fmt: skip
    if not timed:
        return None
    with figure_of(7.2, 2.6) as figure:
        axes = figure.add_axes((0.095, 0.19, 0.875, 0.69))
        for group, curve in timed:
            color, dash = styles[group.label]
            axes.plot(*_drawn(curve), color=color, linestyle=dash, linewidth=1.0, alpha=0.8)
        axes.set_ylim(bottom=0)
        label_chart(axes, "Speed", _STEPS, "steps per second, all seeds")
        axes.yaxis.set_major_formatter(axes.xaxis.get_major_formatter())
        return as_svg(figure, name, "Environment steps per second over the training")


def describe_metric(metric: str) -> str:
    """Return the axis label of a column: ``eval/episode_return`` is "episode return, evaluation"."""
    kind, _, name = metric.rpartition("/")
    where = {"eval": ", evaluation", "train": ", training"}.get(kind, f", {kind}" if kind else "")
    return f"{name.replace('_', ' ')}{where}"


def _drawn(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    steps = thinned(curve.steps)
    return steps, np.interp(steps, curve.steps, curve.values)


def label_chart(axes: Axes, title: str, x: str, y: str, size: int = 9) -> None:
    """Apply the common style to a chart of a report, with a title and axis labels of font ``size``."""
    tidy(axes)
    axes.tick_params(labelsize=min(size, 8))
    axes.set_title(title, loc="left", fontsize=size + 1, fontweight="bold" if size > 8 else "normal", color="#222222")
    label_axes(axes, x, y, size=size)
