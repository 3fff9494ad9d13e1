"""Recorders of a run's metrics: files, the screen, TensorBoard, W&B, MLflow and images. Pass one to ``learn``.

A recorder imports its libraries when it is used, not with this package.
"""

from evorl.recorders.chart_recorder import ChartRecorder
from evorl.recorders.learning_curve import LearningCurveRecorder, draw_learning_curve
from evorl.recorders.live_panel import LivePanel
from evorl.recorders.log_recorder import LogRecorder
from evorl.recorders.mlflow_recorder import MlflowRecorder
from evorl.recorders.notebook_panel import NotebookPanel
from evorl.recorders.plain_lines import PlainLines
from evorl.recorders.progress_recorder import ProgressRecorder
from evorl.recorders.recorder_group import RecorderGroup
from evorl.recorders.row_file import CsvRecorder, JsonlRecorder
from evorl.recorders.standard import make_recorder
from evorl.recorders.state_recorder import StateRecorder
from evorl.recorders.tensorboard_recorder import TensorBoardRecorder
from evorl.recorders.wandb_recorder import WandbRecorder
from evorl.runs.recorder import Recorder

__all__ = [
    "ChartRecorder",
    "CsvRecorder",
    "JsonlRecorder",
    "LearningCurveRecorder",
    "LivePanel",
    "LogRecorder",
    "MlflowRecorder",
    "NotebookPanel",
    "PlainLines",
    "ProgressRecorder",
    "Recorder",
    "RecorderGroup",
    "StateRecorder",
    "TensorBoardRecorder",
    "WandbRecorder",
    "draw_learning_curve",
    "make_recorder",
]
