"""Workflows: complete training procedures, the families they come in, and how they are executed."""

from evorl.workflows.execution import Execution
from evorl.workflows.learning import Checkpointer, Recorder, RunPlan, TrainingDiverged
from evorl.workflows.off_policy import OffPolicyWorkflow
from evorl.workflows.on_policy import OnPolicyWorkflow
from evorl.workflows.workflow import Workflow

__all__ = [
    "Checkpointer",
    "Execution",
    "OffPolicyWorkflow",
    "OnPolicyWorkflow",
    "Recorder",
    "RunPlan",
    "TrainingDiverged",
    "Workflow",
]
