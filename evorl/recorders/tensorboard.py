"""TensorBoard events, over environment steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from evorl.recorders.recorder import BaseRecorder, Plan, Row
from evorl.recorders.row_file import as_number
from evorl.run_folder import writing_to

SECONDS_BETWEEN_FLUSHES = 5.0


class TensorBoardRecorder(BaseRecorder):
    """One event per row. After a resume, TensorBoard drops what had been recorded beyond the checkpoint.

    Events reach the disk every few seconds and at the end; a run that is killed hard may lack the last ones here
    (``metrics.csv`` lacks none).

    Args:
        folder: where the event files lie.

    Raises:
        RunFolderError: the disk is full or read-only.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._first_timesteps = 0
        self._writer: Any = None
        self._next_flush = 0.0

    def start(self, plan: Plan) -> None:
        self._first_timesteps = plan.first_timesteps

    def write(self, row: Row) -> None:
        with writing_to(self.folder.parent):
            writer = self._writer or self._open()
            # Imported at the first row rather than at the start, where it would delay the first training step.
            from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
            from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

            # All values in one event, written at once: a call for each costs twenty times more, and the library's
            # own queue and thread wait for ever on a full disk.
            values = [Summary.Value(tag=name, simple_value=as_number(name, value)) for name, value in row.items()]
            event = Event(wall_time=time.time(), step=int(row["timesteps"]), summary=Summary(value=values))
            writer.write_event(event)
            if time.monotonic() >= self._next_flush:
                writer.flush()
                self._next_flush = time.monotonic() + SECONDS_BETWEEN_FLUSHES

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with writing_to(self.folder.parent):
                writer.close()

    def _open(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        self.folder.mkdir(parents=True, exist_ok=True)
        # The name has the second it was opened in; the rest keeps a quick resume from overwriting the first part.
        self._writer = EventsWriter(str(self.folder / "events"), f".{os.getpid()}.{self._first_timesteps}")
        if self._first_timesteps:
            purge = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=self._first_timesteps + 1, session_log=purge))
        return self._writer
