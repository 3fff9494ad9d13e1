"""The learning curve as an image, drawn from ``metrics.csv`` when the run ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evorl.recorders.pictures import white_figure, write_png
from evorl.recorders.row_file import RowFile
from evorl.recorders.run_status import EVALUATION, MAX_DRAWN, TRAINING, learner_metrics, spread_column
from evorl.runs.recorder import Recorder, Row, RunPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = dict[str, tuple[list[float], list[float]]]
GREEN, BLUE, GRAY = "#1a7f5a", "#3b6fb6", "#5f6b7a"
MAX_SMALL = 6  # maximum number of small plots


class LearningCurveRecorder(Recorder):
    """Draws the learning curve at the end of a run, even if the run was interrupted.

    Args:
        metrics_csv: input file, written by a ``CsvRecorder`` that closes before this recorder.
        picture: path of the PNG to write.
    """

    def __init__(self, metrics_csv: Path | str, picture: Path | str) -> None:
        self.metrics_csv, self.picture = Path(metrics_csv), Path(picture)
        self._name: str | None = None

    def start(self, plan: RunPlan) -> None:
        self._name = plan.name

    def close(self) -> None:
        if self._name is not None and self.metrics_csv.exists():
            draw_learning_curve(self.metrics_csv, self.picture, self._name)
            self._name = None


def draw_learning_curve(metrics_csv: Path | str, picture: Path | str, title: str = "") -> bool:
    """Draw returns over environment steps, with small plots of the learner's metrics below.

    The evaluation return has its standard deviation as a band: over seeds, each drawn as a thin line, or over the
    episodes of a single seed. The training return is a thin line.

    Returns:
        True if the image was written; False if the file has no returns and no metrics of the learner.

    Raises:
        RunFolderError: the image cannot be written, or ``metrics_csv`` is corrupted.
    """
    curves = read_curves(metrics_csv)
    small = learner_metrics(curves)[:MAX_SMALL]
    has_returns = EVALUATION in curves or TRAINING in curves
    if not has_returns and not small:
        return False
    rows = -(-len(small) // 3)
    height = 4.4 + 1.6 * rows
    figure = white_figure(8.0, height)
    # Explicit margins: matplotlib's automatic layout would draw everything twice.
    top, bottom = 1 - 0.35 / height, (0.3 if rows else 0.55) / height
    floor = bottom + (1.6 * rows + 0.2) / height if rows else bottom
    upper = figure.add_gridspec(1, 1, left=0.09, right=0.93, top=top, bottom=floor)
    draw_returns(figure.add_subplot(upper[0]), curves, title)
    if rows:
        lower = figure.add_gridspec(
            rows, 3, left=0.09, right=0.93, top=floor - 0.8 / height, bottom=bottom, wspace=0.34, hspace=0.65
        )
    for i, name in enumerate(small):
        axes = figure.add_subplot(lower[i // 3, i % 3])  # pyright: ignore[reportPossiblyUnboundVariable]
        _draw_small(axes, name.removeprefix("train/"), *curves[name])
    write_png(figure, picture)
    return True


def read_curves(metrics_csv: Path | str) -> Curves:
    """Return environment steps and values of each metric, ``name -> (steps, values)``, see ``extend_curves``.

    Raises:
        RunFolderError: the file is corrupted; see ``RowFile.metrics``.
    """
    curves: Curves = {}
    for row in RowFile(metrics_csv).metrics():
        extend_curves(curves, row)
    return curves


def extend_curves(curves: Curves, row: Row) -> None:
    """Append a row's metrics to the curves, in place; skip NaN and absolute values of ``MAX_DRAWN`` or more."""
    for name, value in row.items():
        if name not in ("iterations", "timesteps") and abs(value) < MAX_DRAWN:
            steps, values = curves.setdefault(name, ([], []))
            steps.append(float(row["timesteps"]))
            values.append(float(value))


def draw_returns(axes: Axes, curves: Curves, title: str) -> None:
    """Draw the returns of training and evaluation over environment steps, as ``draw_learning_curve`` describes."""
    if TRAINING in curves:
        axes.plot(*curves[TRAINING], color=BLUE, linewidth=1.0, alpha=0.75, label="training episodes")
    if EVALUATION in curves:
        steps, means = curves[EVALUATION]
        column, num_seeds = spread_column(curves, EVALUATION)
        spreads = dict(zip(*curves.get(column, ([], [])), strict=True))
        low = [mean - spreads.get(step, 0.0) for step, mean in zip(steps, means, strict=True)]
        high = [mean + spreads.get(step, 0.0) for step, mean in zip(steps, means, strict=True)]
        if spreads:
            label = f"± standard deviation over {f'{num_seeds} seeds' if num_seeds else 'episodes'}"
            axes.fill_between(steps, low, high, color=GREEN, alpha=0.16, linewidth=0, label=label)
        for i, name in enumerate(name for name in curves if name.startswith(f"{EVALUATION}_seed_")):
            axes.plot(*curves[name], color=GREEN, linewidth=0.7, alpha=0.6, label=None if i else "each seed")
        marker = "o" if len(steps) <= 40 else None
        axes.plot(steps, means, color=GREEN, linewidth=2.0, marker=marker, markersize=3.5, label="evaluation")
        axes.annotate(
            f"{means[-1]:,.1f}", (steps[-1], means[-1]), xytext=(6, 0), textcoords="offset points", va="center",
            fontsize=9, color=GREEN, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    tidy(axes)
    label_axes(axes, "environment steps", "episode return", title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="best", labelcolor=GRAY)


def _draw_small(axes: Axes, name: str, steps: list[float], values: list[float]) -> None:
    axes.plot(steps, values, color=GRAY, linewidth=1.0, marker="." if len(steps) == 1 else None)
    tidy(axes)
    axes.set_title(name.replace("_", " "), loc="left", fontsize=8, color="#222222", parse_math=False)
    axes.tick_params(labelsize=6.5)
    axes.locator_params(nbins=4)


def tidy(axes: Axes) -> None:
    """Apply the common style: few gray lines, abbreviated environment steps on the horizontal axis."""
    from matplotlib.ticker import FuncFormatter

    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c8ced6")
    axes.tick_params(colors=GRAY, labelsize=8, length=3)
    axes.grid(axis="y", color="#e6e9ee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_steps(x)))


def label_axes(axes: Axes, x: str, y: str, title: str | None = None, size: int = 9, **style: Any) -> None:
    """Label both axes in gray with a font ``size``; a ``title`` is set above in bold, with arguments ``style``."""
    axes.set_xlabel(x, fontsize=size, color=GRAY)
    axes.set_ylabel(y, fontsize=size, color=GRAY)
    if title is not None:
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color="#222222", parse_math=False, **style)


def format_steps(steps: float) -> str:
    """Format a number of steps for an axis: ``500``, ``50k``, ``1.5M``."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(steps) >= size:
            return f"{steps / size:.4g}{unit}"
    return f"{steps:.4g}"
