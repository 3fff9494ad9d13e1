"""Progress as a live panel on a terminal."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evorl.ops.terminal_text import raw_stream
from evorl.recorders import run_status
from evorl.recorders.screen import print_line, printable
from evorl.runs.recorder import Recorder, Row, RunPlan

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MAX_LOSSES = 9
WIDTH = 84
HISTORY = 24  # width in characters of the curve after the evaluation return; halved after a long text
SHORT_RETURN = 22  # minimum number of characters of a long text


class Panel(Recorder, ABC):
    """Base class of views of a run's status; the training thread redraws them, in a limited share of its time."""

    seconds_between_frames, share_of_time = 0.2, 0.01  # minimum seconds, and maximum share of time for drawing

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._status: run_status.RunStatus | None = None
        self._next_frame = 0.0

    @abstractmethod
    def draw(self) -> None:
        """Show the current status."""

    def start(self, plan: RunPlan) -> None:
        self._status = run_status.RunStatus(plan, self._clock)

    def write(self, row: Row) -> None:
        if self._status is not None:
            self._status.take_row(row)
            self._draw_seldom()

    def progress(self, timesteps: int, steps_per_second: float, latest: Row) -> None:
        if self._status is not None:
            self._status.advance(timesteps, steps_per_second, latest)
            self._draw_seldom()

    def message(self, text: str) -> None:
        print_line(text)

    def close(self) -> None:
        if self._status is not None:
            self.draw()
            self._status = None

    def _draw_seldom(self) -> None:
        if (start := self._clock()) >= self._next_frame:
            self.draw()
            end = self._clock()
            self._next_frame = end + max(self.seconds_between_frames, (end - start) / self.share_of_time)


class LivePanel(Panel):
    """Terminal panel, redrawn in place in at most 1 % of the time, with messages above it; the last frame remains.

    Args:
        console: console of ``rich`` to draw on; ``None`` for standard output.
        clock: function that returns a time in seconds; tests replace it.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self._console = console
        self._live: Any = None

    def draw(self) -> None:
        self._live.update(self._panel(), refresh=True)

    def start(self, plan: RunPlan) -> None:
        from rich.console import Console
        from rich.live import Live

        super().start(plan)
        self._console = self._console or Console(file=raw_stream(sys.stdout))
        self._live = Live(self._panel(), console=self._console, auto_refresh=False, redirect_stderr=True)
        self._live.start(refresh=True)

    def message(self, text: str) -> None:
        if self._live is not None:
            from rich.text import Text

            # As Text: print(markup=False) would also redraw the panel without colors.
            self._live.console.print(Text(printable(text, self._live.console.encoding)))
        else:
            super().message(text)

    def close(self) -> None:
        super().close()
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _panel(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        assert self._status is not None, "start() makes the status"
        encoding = self._console.encoding if self._console is not None else None
        parts = [*_bar(self._status), *_returns(self._status, encoding), *_losses(self._status, encoding)]
        title = Text(printable(self._status.plan.name, encoding), style="bold")  # as Text: brackets are not markup
        return Panel(Group(*parts), title=title, title_align="left", width=WIDTH, box=box.ROUNDED)


def _bar(status: run_status.RunStatus) -> list[RenderableType]:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    grid.add_row(ProgressBar(total=1.0, completed=status.fraction), f"[bold]{status.fraction:.0%}")
    left = "done" if status.fraction >= 1 else f"{run_status.format_duration(status.seconds_left)} left"
    speed = f"{status.steps_per_second:,.0f}" if status.steps_per_second else "-"
    counts = f"[bold]{status.timesteps:,}[/] of {status.plan.total_timesteps:,} steps"
    return [grid, Text.from_markup(f"{counts}   [bold]{speed}[/] steps/s   [bold]{left}[/]")]


def _returns(status: run_status.RunStatus, encoding: str | None) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    row, side_by_side = status.latest, status.plan.side_by_side
    if run_status.EVALUATION not in row and run_status.TRAINING not in row:
        return []
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row("", "", "")
    if run_status.EVALUATION in row:
        returns = run_status.format_return(row, run_status.EVALUATION, side_by_side)
        width = HISTORY if len(returns) < SHORT_RETURN else HISTORY // 2
        best = f" [dim]best {status.best:,.1f}" if len(status.evaluations) > 1 and math.isfinite(status.best) else ""
        history = printable(f"[green]{run_status.sparkline(status.evaluations, width)}[/]{best}", encoding)
        grid.add_row("evaluation return", Text(printable(returns, encoding), "bold green"), history)
    if run_status.TRAINING in row:
        length = row.get("train/episode_length")
        length = f"[dim]length {length:,.0f}" if length is not None else ""
        returns = run_status.format_return(row, run_status.TRAINING, side_by_side)
        grid.add_row("training return", Text(printable(returns, encoding), "bold"), length)
    return [grid]


def _losses(status: run_status.RunStatus, encoding: str | None) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    shown = run_status.losses(status.latest)[:MAX_LOSSES]
    if not shown:
        return []
    cells = [(printable(name, encoding), run_status.format_number(value)) for name, value in shown]
    columns = next((n for n in (3, 2) if _table_width(cells, n) <= WIDTH - 4), 1)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row("")
    for i in range(0, len(cells), columns):
        grid.add_row(*(text for name, value in cells[i : i + columns] for text in (Text(name, "dim"), value)))
    return [grid]


def _table_width(cells: list[tuple[str, str]], columns: int) -> int:
    return sum(
        max(len(name) for name, _ in cells[i::columns]) + max(len(value) for _, value in cells[i::columns]) + 4
        for i in range(min(columns, len(cells)))
    )
