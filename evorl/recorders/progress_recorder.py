"""Progress on the screen: a live panel on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys

from evorl.recorders.live_panel import LivePanel
from evorl.recorders.plain_lines import PlainLines
from evorl.recorders.recorder_group import RecorderGroup
from evorl.recorders.screen import print_line
from evorl.runs.recorder import Recorder, RunPlan


class ProgressRecorder(RecorderGroup):
    """Chooses between ``LivePanel`` and ``PlainLines`` when the run starts.

    Args:
        live: true for the panel, false for lines; ``None`` uses the panel if standard output is a terminal.
    """

    def __init__(self, live: bool | None = None) -> None:
        super().__init__(())
        self._live = live

    def start(self, plan: RunPlan) -> None:
        live = sys.stdout.isatty() if self._live is None else self._live
        chosen: Recorder = LivePanel() if live else PlainLines()
        self.recorders = (chosen,)
        super().start(plan)

    def message(self, text: str) -> None:
        if self.recorders:
            super().message(text)
        else:  # before the start, such as the message about a resume
            print_line(text)
