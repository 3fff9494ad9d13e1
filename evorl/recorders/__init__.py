"""Where metrics go: files, a live panel, TensorBoard, pictures. Each recorder is an argument of ``learn``.

Libraries are imported when a recorder starts, not here.
"""

from evorl.recorders.building import make_recorder
from evorl.recorders.charts import ChartRecorder
from evorl.recorders.csv_recorder import CsvRecorder
from evorl.recorders.jsonl_recorder import JsonlRecorder
from evorl.recorders.learning_curve import LearningCurveRecorder, draw_learning_curve
from evorl.recorders.live_panel import LivePanel
from evorl.recorders.log import LogRecorder
from evorl.recorders.plain_lines import PlainLines
from evorl.recorders.progress import ProgressRecorder
from evorl.recorders.recorder import BaseRecorder, RecorderGroup
from evorl.recorders.tensorboard import TensorBoardRecorder
from evorl.recorders.wandb_recorder import WandbRecorder

__all__ = [
    "BaseRecorder",
    "ChartRecorder",
    "CsvRecorder",
    "JsonlRecorder",
    "LearningCurveRecorder",
    "LivePanel",
    "LogRecorder",
    "PlainLines",
    "ProgressRecorder",
    "RecorderGroup",
    "TensorBoardRecorder",
    "WandbRecorder",
    "draw_learning_curve",
    "make_recorder",
]
