"""A program of one or several processes that trains small workflows: its arguments are a folder and names.

Each name is that of an algorithm's test file, or ``<name>-seeds``: two seeds, a device each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from evorl.cli.joining import leaving_together
from evorl.cli.main import restore
from evorl.cli.runtime import prepare_runtime
from evorl.recorders import make_recorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.types import State
from evorl.workflows.workflow import Workflow
from tests.support.small_workflows import contract_of
from tests.support.training_runs import SEED

NUM_DEVICES = 2


def workflow_of(name: str) -> Workflow:
    algorithm, _, seeds = name.partition("-")
    changes: dict[str, Any] = {"num_seeds": NUM_DEVICES} if seeds else {}
    return contract_of(algorithm).make_run(devices=NUM_DEVICES, **changes)


def train(folder: Path, name: str) -> None:
    """Train to the end; all that a run folder holds is left below ``folder``."""
    workflow, run = workflow_of(name), RunFolder.create(folder, {}, name)
    recorder = make_recorder(run, progress=False, tensorboard=False, learning_curve=False)
    checkpointer = RunCheckpointer(run.checkpoints)
    workflow.learn(key=SEED, recorder=recorder, checkpointer=checkpointer)
    # What was saved by several is read by several, too.
    state, progress = restore(workflow, checkpointer, SEED, "latest")
    checkpointer.save(state, {**progress, "iterations": progress["iterations"] + 1})
    recorder.close()


def saved_state(folder: Path, name: str, later: int = 0) -> State:
    """The last state of a training, or the one that was read and saved again, on the devices of this process."""
    checkpointer = RunCheckpointer(folder / name / "checkpoints")
    return restore(workflow_of(name), checkpointer, SEED, str(checkpointer.steps[-2 + later]))[0]


def main() -> None:
    """The program."""
    with leaving_together():
        prepare_runtime(NUM_DEVICES)
        for each in sys.argv[2:]:
            train(Path(sys.argv[1]), each)
