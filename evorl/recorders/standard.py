"""Creates the standard recorders of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from evorl.ops.processes import is_first
from evorl.recorders.chart_recorder import ChartRecorder
from evorl.recorders.learning_curve import LearningCurveRecorder
from evorl.recorders.log_recorder import LogRecorder
from evorl.recorders.mlflow_recorder import MlflowRecorder
from evorl.recorders.progress_recorder import ProgressRecorder
from evorl.recorders.recorder_group import RecorderGroup
from evorl.recorders.row_file import CsvRecorder, JsonlRecorder
from evorl.recorders.state_recorder import StateRecorder
from evorl.recorders.tensorboard_recorder import TensorBoardRecorder
from evorl.recorders.wandb_recorder import WandbRecorder
from evorl.runs.folder import RunFolder
from evorl.runs.recorder import Recorder


def make_recorder(
    folder: RunFolder,
    *,
    title: str | None = None,
    progress: bool = True,
    live: bool | None = None,
    tensorboard: bool = True,
    settings: Mapping[str, Any] | None = None,
    learning_curve: bool = True,
    wandb: Mapping[str, Any] | None = None,
    mlflow: Mapping[str, Any] | None = None,
    others: Iterable[Recorder] = (),
) -> RecorderGroup:
    """Create the recorders of a run folder and of the screen; an empty group in all processes except the first.

    Args:
        folder: the run folder.
        title: title of the run on the screen, in the log and in images; ``None`` for the name in its plan.
        progress: show progress on the screen.
        live: true for a panel, false for plain lines; ``None`` for a panel only on a terminal or in a notebook.
        tensorboard: write TensorBoard events.
        settings: settings of the run by dotted key, for TensorBoard's table of runs.
        learning_curve: draw the learning curve at the end.
        wandb: arguments of ``WandbRecorder``, ``{}`` for its defaults; ``None`` disables Weights & Biases.
        mlflow: arguments of ``MlflowRecorder``; ``None`` disables MLflow.
        others: additional recorders, such as results of ``episode_recorders``; may be a generator, which creates them.
    """
    if not is_first():
        return RecorderGroup(())
    recorders: list[Recorder] = [StateRecorder(folder.state)]  # first: it fails if the run is already being trained
    try:
        recorders += [LogRecorder(folder.log), CsvRecorder(folder.metrics_csv), JsonlRecorder(folder.metrics_jsonl)]
        recorders.append(ChartRecorder(folder.path))
        recorders.extend(others)
        if tensorboard:
            recorders.append(TensorBoardRecorder(folder.tensorboard, settings))
        if wandb is not None:
            recorders.append(WandbRecorder(folder.path, **wandb))
        if mlflow is not None:
            recorders.append(MlflowRecorder(folder.path, **mlflow))
    except Exception as error:
        _end(RecorderGroup(recorders), error)
        raise
    if progress:
        recorders.append(ProgressRecorder(live))
    if learning_curve:  # last: the image is drawn after the files and the screen are closed
        recorders.append(LearningCurveRecorder(folder.metrics_csv, folder.learning_curve))
    return RecorderGroup(recorders, title)


def _end(recorder: Recorder, error: Exception) -> None:
    for end in (lambda: recorder.failure(error), recorder.close):
        with contextlib.suppress(Exception):  # ``error`` is raised instead
            end()
