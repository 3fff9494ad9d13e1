"""Progress on the screen: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from evorl.recorders.live_panel import LivePanel
from evorl.recorders.plain_lines import PlainLines
from evorl.recorders.recorder import BaseRecorder, Plan, RecorderGroup


class ProgressRecorder(RecorderGroup):
    """Chooses between ``LivePanel`` and ``PlainLines`` when the run starts.

    Args:
        live: ``True`` or ``False`` to choose; ``None`` asks whether standard output is a terminal.
    """

    def __init__(self, live: bool | None = None) -> None:
        super().__init__(())
        self._live = live

    def start(self, plan: Plan) -> None:
        live = sys.stdout.isatty() if self._live is None else self._live
        chosen: BaseRecorder = LivePanel() if live else PlainLines()
        self.recorders = (chosen,)
        super().start(plan)

    def message(self, text: str) -> None:
        if self.recorders:
            super().message(text)
        else:  # before the start, as when a resume is announced
            print(text, flush=True)
