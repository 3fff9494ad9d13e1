"""Progress in a notebook: a learning curve that grows below the cell."""

from __future__ import annotations

import base64
import io
import sys
import time
from collections.abc import Callable
from typing import Any

from evorl.recorders.learning_curve import Curves, draw_returns, extend_curves
from evorl.recorders.live_panel import Panel
from evorl.recorders.pictures import white_figure
from evorl.recorders.run_status import EVALUATION, TRAINING, describe_metrics, format_duration
from evorl.runs.recorder import Row, RunPlan

WIDTH = 100  # characters of a line below a cell


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook, as in Jupyter, VS Code and Colab."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


class NotebookPanel(Panel):
    """Shows status and learning curve below the cell, redrawn in at most 2 % of the time; the last image remains.

    Args:
        show: function that displays data, a dict by MIME type, and returns an object with a method ``update`` that
            replaces the data; by default ``IPython.display.display``.
        clock: function that returns a time in seconds; tests replace it.
    """

    seconds_between_frames, share_of_time = 1.0, 0.02

    def __init__(
        self, show: Callable[[dict[str, str]], Any] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(clock)
        self._show = show or _show_below_cell
        self._curves: Curves = {}
        self._shown: Any = None

    def draw(self) -> None:
        self._shown.update(self._frame(), raw=True)

    def start(self, plan: RunPlan) -> None:
        super().start(plan)
        self._curves = {}
        self._shown = self._show(self._frame())

    def write(self, row: Row) -> None:
        extend_curves(self._curves, row)
        super().write(row)

    def _frame(self) -> dict[str, str]:
        assert self._status is not None, "start() makes the status"
        status = self._status
        state = f"{status.fraction:.0%}  {status.timesteps:,} of {status.plan.total_timesteps:,} steps"
        if status.steps_per_second:
            state += f"  {status.steps_per_second:,.0f} steps/s"
        state += "  done" if status.fraction >= 1 else f"  {format_duration(status.seconds_left)} left"
        metrics = describe_metrics(status.latest, width=WIDTH, side_by_side=status.plan.side_by_side)
        frame = {"text/plain": f"{status.plan.name}\n{state}\n{metrics}".rstrip()}
        if EVALUATION in self._curves or TRAINING in self._curves:
            frame["image/png"] = base64.b64encode(_picture(self._curves, status.plan.name, state)).decode()
        return frame


def _show_below_cell(frame: dict[str, str]) -> Any:
    from IPython.display import display

    return display(frame, raw=True, display_id=True)


def _picture(curves: Curves, title: str, state: str) -> bytes:
    figure = white_figure(7.6, 3.4, dpi=100)
    axes = figure.add_axes((0.09, 0.15, 0.84, 0.68))
    draw_returns(axes, curves, title)
    figure.text(0.09, 0.945, state, fontsize=9, color="#222222", parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
