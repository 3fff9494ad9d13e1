"""Draws learning curves next to published figures as SVG; equal results give equal bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.learning.judgment import environment_steps, scores
from benchmarks.learning.published import Published
from benchmarks.learning.task import LearningTask, Point
from evorl.recorders.learning_curve import format_steps
from evorl.reports.statistics import mean, stratified_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = "learning"  # in docs/algorithms
MAX_POINTS = 100  # evaluations in a picture; more of them are thinned out evenly
RESAMPLES = 2_000  # bootstrap resamples of an interval, which is only drawn
LIGHT = {"ours": "#1a7f5a", "theirs": "#b35900", "text": "#3d4650", "lines": "#c8ced6"}
DARK = {"ours": "#5fd0a4", "theirs": "#f0a35e", "text": "#c8ced6", "lines": "#5f6b7a"}


def file_names(task: LearningTask) -> tuple[str, str]:
    """Return the names of the light and of the dark picture of a task."""
    return f"{task.name}.svg", f"{task.name}.dark.svg"


def draw_curve(task: LearningTask, result: Mapping[str, Any], *, dark: bool = False, stale: bool = False) -> str:
    """Return the SVG of a result next to the published figure, or to the threshold of our own.

    Ours: the mean over seeds and its 95 % bootstrap interval over environment steps, and each seed as a thin line.
    Theirs, at the published number of environment steps: each seed as a point, or the mean with its standard error
    over seeds, or the mean alone; the mean and its standard error are also drawn as a line and a band.

    Args:
        task: the task.
        result: a recorded result with at least one evaluation.
        dark: draw for a dark background.
        stale: mark the result as stale, by dashed lines and in the title.
    """
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it logs that it builds its font cache
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colors = DARK if dark else LIGHT
    figure = Figure(figsize=(6.4, 3.2))
    figure.patch.set_alpha(0.0)
    axes = figure.add_axes((0.12, 0.16, 0.84, 0.74))
    points = thinned(result["curve"])
    steps = [environment_steps(point, result) for point in points]
    seeds = len(result["seeds"])  # for some scores, only the mean over seeds is recorded
    label = f"evorl, {seeds} seed{'s' * (seeds > 1)}"
    _draw_ours(axes, steps, points, label=label, color=colors["ours"], linestyle="--" if stale else "-")
    if task.published is not None:
        _draw_theirs(axes, task.published, colors["theirs"])
    else:
        _draw_level(axes, task.bound, f"threshold of our own, {task.bound:g}", colors["theirs"])
    _style(axes, f"{task.title}: stale result of {result['date']}" if stale else task.title, colors)
    file = io.StringIO()
    # Text is stored as text; ids and metadata are deterministic.
    with matplotlib.rc_context({"svg.hashsalt": task.name, "svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(
            file, metadata={"Date": None, "Creator": None, "Description": digest_of(task, result, stale=stale)}
        )
    return file.getvalue()


def digest_of(task: LearningTask, result: Mapping[str, Any], *, stale: bool = False) -> str:
    """Return a digest of the data in a picture, which the picture contains to show if it is current."""
    theirs = dataclasses.asdict(task.published) if task.published is not None else task.bound
    steps = [[environment_steps(point, result), *scores(point)] for point in thinned(result["curve"])]
    drawn = json.dumps([task.title, theirs, steps, result["date"] if stale else None])
    return hashlib.sha256(drawn.encode()).hexdigest()[:16]


def thinned(curve: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Return at most ``most`` evaluations of a curve, evenly spaced, with the first and the last one."""
    chosen = np.unique(np.linspace(0, len(curve) - 1, min(most, len(curve))).round().astype(int))
    return [curve[i] for i in chosen]


def _draw_ours(axes: Axes, steps: Sequence[int], points: Sequence[Point], *, color: str, **style: Any) -> None:
    by_seed = np.array([scores(point) for point in points])
    if by_seed.shape[1] > 1:
        low, high = stratified_interval([by_seed], lambda drawn: mean(drawn[0]), resamples=RESAMPLES)
        axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        for seed in by_seed.T:
            axes.plot(steps, seed, color=color, linewidth=0.6, alpha=0.5)
    marker = "o" if len(points) <= 40 else None
    axes.plot(steps, by_seed.mean(axis=1), color=color, linewidth=2.0, marker=marker, markersize=3, **style)


def _draw_theirs(axes: Axes, theirs: Published, color: str) -> None:
    at, error = theirs.timesteps, theirs.standard_error
    _draw_level(axes, theirs.center, None, color)
    if error:
        axes.axhspan(theirs.center - error, theirs.center + error, color=color, alpha=0.12, linewidth=0)
    if theirs.values is not None:
        label = f"{theirs.by}, {theirs.num_seeds} seeds"
        axes.plot([at] * theirs.num_seeds, theirs.values, "D", color=color, markersize=4, alpha=0.7, label=label)
        return
    label = f"{theirs.by}, mean" + (" and standard error" if error else "")
    axes.errorbar([at], [theirs.center], yerr=error or None, fmt="D", color=color, markersize=5, capsize=4, label=label)


def _draw_level(axes: Axes, level: float, label: str | None, color: str) -> None:
    axes.axhline(level, color=color, linewidth=0.8, linestyle=":", label=label)


def _style(axes: Axes, title: str, colors: Mapping[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colors["lines"])
    axes.tick_params(colors=colors["text"], labelsize=8, length=3)
    axes.grid(axis="y", color=colors["lines"], linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_steps(x)))
    axes.set_title(title, loc="left", fontsize=10, color=colors["text"], parse_math=False)
    axes.set_xlabel("environment steps", fontsize=8, color=colors["text"])
    axes.legend(frameon=False, fontsize=8, loc="best", labelcolor=colors["text"])
