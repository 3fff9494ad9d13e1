"""Progress on the screen: a live panel on a terminal, a growing curve in a notebook, plain lines otherwise."""

from __future__ import annotations

import sys

from evorl.recorders.live_panel import LivePanel
from evorl.recorders.notebook_panel import NotebookPanel, in_notebook
from evorl.recorders.plain_lines import PlainLines
from evorl.recorders.recorder_group import RecorderGroup
from evorl.recorders.screen import print_line
from evorl.runs.recorder import Recorder, RunPlan


class ProgressRecorder(RecorderGroup):
    """Chooses between ``LivePanel``, ``NotebookPanel`` and ``PlainLines`` when the run starts.

    Args:
        live: true for a panel, false for plain lines; ``None`` for a panel only on a terminal or in a notebook.
    """

    def __init__(self, live: bool | None = None) -> None:
        super().__init__(())
        self._live = live

    def start(self, plan: RunPlan) -> None:
        self.recorders = (self._choose(),)
        super().start(plan)

    def _choose(self) -> Recorder:
        if self._live is not False and in_notebook():
            return NotebookPanel()
        live = getattr(sys.stdout, "isatty", bool)() if self._live is None else self._live
        return LivePanel() if live else PlainLines()

    def message(self, text: str) -> None:
        if self.recorders:
            super().message(text)
        else:  # before the start, such as the message about a resume
            print_line(text)
