"""A program of one or several processes that trains small workflows; its arguments are a folder and names.

Each name is that of an algorithm's test file; with ``-seeds`` each of two seeds uses one device, with ``-large`` all
processes store the replay buffer separately.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import jax

from evorl.execution.multiprocess import leaving_together, refuse_different_settings
from evorl.execution.restoration import restore
from evorl.execution.runtime import prepare_runtime
from evorl.ops import processes
from evorl.recorders import make_recorder
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.types import State
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.jax_internals import every_process_keeps_programs
from tests.support.small_workflows import contract_of
from tests.support.training_runs import SEED

NUM_DEVICES = 2
CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    "seeds": {"num_seeds": NUM_DEVICES},
    "large": {"replay_capacity": 2**17},  # 1.5 MB of Pendulum's observations
}


def workflow_of(name: str) -> Workflow:
    """Build the workflow of a name, on two devices."""
    algorithm, _, changes = name.partition("-")
    return contract_of(algorithm).make_run(devices=NUM_DEVICES, **CHANGES[changes])


def train(folder: Path, name: str) -> None:
    """Train to the end; write all files of a run folder below ``folder``."""
    workflow, run = workflow_of(name), RunFolder.create(folder, {}, name)
    recorder = make_recorder(run, progress=False, tensorboard=False, learning_curve=False)
    checkpointer = RunCheckpointer(run.checkpoints)
    workflow.learn(key=SEED, recorder=recorder, checkpointer=checkpointer)
    # Checkpoints saved by several processes are also read by several.
    state, progress = restore(workflow, checkpointer, SEED, "latest")
    steps = workflow.timesteps_per_iteration
    later = {"iterations": progress["iterations"] + 1, "timesteps": progress["timesteps"] + steps}
    checkpointer.save(state, {**progress, **later})
    recorder.close()


def saved_states(folder: Path, name: str) -> tuple[State, State]:
    """Return the last state of a training run, and its copy that was read and saved again, on this
    process's devices.
    """
    workflow, checkpointer = workflow_of(name), RunCheckpointer(folder / name / "checkpoints")
    last, again = (restore(workflow, checkpointer, SEED, str(step))[0] for step in checkpointer.steps[-2:])
    return last, again


def agree() -> None:
    """Test that processes with different inputs reach the same decisions."""
    index, count = jax.process_index(), jax.process_count()
    assert processes.is_multiprocess() == (count > 1)
    assert processes.is_first() == (index == 0)
    assert processes.number_of_first(index + 5) == 5
    assert processes.decided_by_first(lambda: {"ä": [index, "x" * 3000]}) == {"ä": [0, "x" * 3000]}
    assert processes.any_says(index == count - 1)
    assert not processes.any_says(False)
    refuse_different_settings("the same")
    with raises_naming(ValueError, "command line") if count > 1 else contextlib.nullcontext():
        refuse_different_settings(f"of process {index}")


def main() -> None:
    """Run the program."""
    with leaving_together():
        prepare_runtime(NUM_DEVICES)
        every_process_keeps_programs()
        agree()
        for name in sys.argv[2:]:
            train(Path(sys.argv[1]), name)
        print(f"{os.getpid()} is done")


if __name__ == "__main__":
    main()
