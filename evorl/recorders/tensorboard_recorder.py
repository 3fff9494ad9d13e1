"""Recorder of TensorBoard events, over environment steps."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evorl.recorders.row_file import as_number
from evorl.recorders.run_status import EVALUATION
from evorl.runs.files import make_folder, refuse_link, writing_to
from evorl.runs.privacy import shareable
from evorl.runs.recorder import Recorder, Row, RunPlan

SECONDS_BETWEEN_WRITES = 10.0


class TensorBoardRecorder(Recorder):
    """Writes one event per row. After a resume, TensorBoard drops the events recorded after the checkpoint.

    Events reach the disk every ten seconds and at the end; after a hard kill the last events may be missing here, but
    not in ``metrics.csv``.

    Args:
        folder: folder of the event files.
        settings: settings of the run by dotted key, stored without secrets (see ``evorl.runs.privacy``) for the tab
            HPARAMS, which compares runs by settings and last evaluation return; ``None`` omits the run there.

    Raises:
        RunFolderError: the disk is full or read-only.
    """

    def __init__(self, folder: Path | str, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self._settings = shareable(settings or {})
        self._first_timesteps = 0
        self._writer: Any = None
        self._pending: list[tuple[float, dict[str, float | int]]] = []
        self._next_write = math.inf

    def start(self, plan: RunPlan) -> None:
        self._first_timesteps = plan.first_timesteps

    def write(self, row: Row) -> None:
        # Buffered at first: in a short run, importing the library takes longer than all other recording.
        if not self._pending and self._writer is None:
            self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES
        self._pending.append((time.time(), {name: as_number(name, value) for name, value in row.items()}))
        if time.monotonic() >= self._next_write:
            self._write_pending()

    def write_histogram(
        self, name: str, timesteps: int, values: np.ndarray, edges: Sequence[float], counts: Sequence[int]
    ) -> None:
        """Write a histogram of values, without buffering.

        Args:
            name: name of the metric.
            timesteps: environment steps at which the values were recorded.
            values: finite numbers, ``[N]``, at least one.
            edges: bin edges, ``[K + 1]``.
            counts: number of values in each bin, ``[K]``.
        """
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
        from tensorboardX.proto.summary_pb2 import (
            HistogramProto,  # pyright: ignore[reportAttributeAccessIssue]
            Summary,  # pyright: ignore[reportAttributeAccessIssue]
        )

        self.flush()
        histogram = HistogramProto(
            min=values.min(), max=values.max(), num=values.size, sum=values.sum(), sum_squares=values @ values,
            bucket_limit=edges, bucket=[0, *counts],  # bucket_limit has upper limits: the first bin is below all values
        )  # fmt: skip
        with writing_to(self.folder.parent):
            writer = self._writer or self._open()
            summary = Summary(value=[Summary.Value(tag=name, histo=histogram)])
            writer.write_event(Event(wall_time=time.time(), step=timesteps, summary=summary))
            writer.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if self._pending:
            self._write_pending()

    def close(self) -> None:
        self.flush()
        writer, self._writer = self._writer, None
        if writer is not None:
            with writing_to(self.folder.parent):
                writer.close()

    def _write_pending(self) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  (made at import)
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        pending, self._pending = self._pending, []
        self._next_write = time.monotonic() + SECONDS_BETWEEN_WRITES
        with writing_to(self.folder.parent):
            writer = self._writer or self._open()
            # All values of a row in one event, written by this thread: one call per value costs twenty times more, and
            # the library's own queue and thread wait forever on a full disk.
            for seconds, row in pending:
                values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
                writer.write_event(Event(wall_time=seconds, step=int(row["timesteps"]), summary=Summary(value=values)))
            writer.flush()

    def _open(self) -> Any:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]  (as above)

        make_folder(self.folder)
        before = list(self.folder.iterdir())
        for path in before:
            refuse_link(path)
        # File names contain the creation time in seconds; the suffix keeps a quick resume from overwriting a file.
        name = f".{os.getpid()}.{self._first_timesteps}.{len(before)}"
        self._writer = EventsWriter(str(self.folder / "events"), name)
        if self._first_timesteps:
            purge = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=self._first_timesteps + 1, session_log=purge))
        if self._settings:
            for summary in _hparams(self._settings):
                self._writer.write_event(Event(wall_time=time.time(), summary=summary))
        return self._writer


def _hparams(settings: Mapping[str, Any]) -> Iterator[Any]:
    """Yield two summaries for TensorBoard's plugin hparams: the columns of its table, and the values of this run."""
    from tensorboardX.proto import api_pb2, plugin_hparams_pb2, summary_pb2

    api: Any = api_pb2  # the members of these modules are created at import
    hparams: Any = plugin_hparams_pb2
    summaries: Any = summary_pb2
    start, columns = hparams.SessionStartInfo(start_time_secs=time.time()), []
    for name, value in settings.items():
        if value is None:
            continue
        if isinstance(value, bool):
            start.hparams[name].bool_value, kind = value, "DATA_TYPE_BOOL"
        elif isinstance(value, int | float):
            start.hparams[name].number_value, kind = value, "DATA_TYPE_FLOAT64"
        else:
            start.hparams[name].string_value, kind = str(value), "DATA_TYPE_STRING"
        columns.append(api.HParamInfo(name=name, type=api.DataType.Value(kind)))
    metric = api.MetricInfo(name=api.MetricName(tag=EVALUATION), display_name="last evaluation return")
    experiment = api.Experiment(hparam_infos=columns, metric_infos=[metric])
    contents = {
        "_hparams_/experiment": hparams.HParamsPluginData(experiment=experiment),
        "_hparams_/session_start_info": hparams.HParamsPluginData(session_start_info=start),
    }
    for tag, content in contents.items():
        plugin = summaries.SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString())
        metadata = summaries.SummaryMetadata(plugin_data=plugin)
        yield summaries.Summary(value=[summaries.Summary.Value(tag=tag, metadata=metadata)])
