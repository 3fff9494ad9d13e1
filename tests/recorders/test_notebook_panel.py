"""Progress in a notebook: text at once, then a picture that is replaced, and seldom."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from evorl.recorders import NotebookPanel, ProgressRecorder
from tests.recorders.test_live_panel import Clock
from tests.support.recorded_runs import NUM_ITERATIONS, make_plan, make_row, record


class Cell:
    """The output of a cell: every frame that was shown in it."""

    def __init__(self, draw: Callable[[], None] = lambda: None) -> None:
        self.draw = draw
        self.frames: list[dict[str, str]] = []
        self.num_outputs = 0

    def show(self, frame: dict[str, str]) -> Cell:
        self.num_outputs += 1
        self.frames.append(frame)
        return self

    def update(self, frame: dict[str, str], raw: bool) -> None:
        assert raw
        self.draw()
        self.frames.append(frame)


def test_a_cell_has_one_output_that_ends_with_the_whole_curve() -> None:
    cell = Cell()
    record(NotebookPanel(cell.show))
    assert cell.num_outputs == 1
    assert cell.frames[0] == {"text/plain": "PPOWorkflow\n0%  0 of 1,200 steps  -:--:-- left"}
    last = cell.frames[-1]
    for text in ("100%  1,200 of 1,200 steps", "done", "evaluation return 300.0 ± 4.0", "training return 240.0"):
        assert text in last["text/plain"]
    picture = Image.open(io.BytesIO(base64.b64decode(last["image/png"])))
    assert picture.size == (760, 340)
    assert len(picture.convert("RGB").getcolors(2**20)) > 20  # a drawing, not a blank page


def test_the_picture_grows() -> None:
    cell, clock = Cell(), Clock()
    panel = NotebookPanel(cell.show, clock)
    panel.start(make_plan())
    pictures = []
    for iteration in range(1, NUM_ITERATIONS + 1):
        clock.now += 100.0
        panel.write(make_row(iteration))
        pictures.append(cell.frames[-1].get("image/png"))
    assert pictures[:2] == [None, None]  # before the first episode there is nothing to draw
    assert len(set(pictures[2:])) == NUM_ITERATIONS - 2


@pytest.mark.parametrize(("seconds_per_frame", "pause"), [(0.001, 1.0), (0.5, 25.0)])
def test_drawing_takes_a_small_share_of_the_time(seconds_per_frame: float, pause: float) -> None:
    clock = Clock()
    cell = Cell(lambda: setattr(clock, "now", clock.now + seconds_per_frame))
    panel = NotebookPanel(cell.show, clock)
    panel.start(make_plan())
    panel.progress(100, 1e5, {})
    num_frames = len(cell.frames)
    clock.now += 0.99 * pause
    panel.progress(200, 1e5, {})
    assert len(cell.frames) == num_frames
    clock.now += 0.02 * pause
    panel.progress(300, 1e5, {})
    assert len(cell.frames) == num_frames + 1


def test_a_kernel_gets_the_panel_and_a_plain_shell_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(shell: Any, live: bool | None = None) -> str:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        return type(ProgressRecorder(live)._choose()).__name__

    kernel = SimpleNamespace(kernel=object())
    assert chosen(kernel) == chosen(kernel, live=True) == "NotebookPanel"
    assert chosen(kernel, live=False) == "PlainLines"
    assert chosen(SimpleNamespace()) == chosen(None) == "PlainLines"  # a terminal with IPython; no shell
