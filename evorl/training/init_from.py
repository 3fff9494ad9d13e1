"""``init_from=<run>``: initializes a new run with the parameters of another run."""

from __future__ import annotations

import dataclasses

from evorl.runs.best_run import find_run
from evorl.runs.recorder import Recorder
from evorl.runs.spec import RunSpec
from evorl.types import State
from evorl.warm_start import WarmStart, warm_start
from evorl.workflows.workflow import Workflow


def warm_start_from(spec: RunSpec, workflow: Workflow) -> tuple[RunSpec, WarmStart]:
    """Load the initial parameters that ``init_from`` names.

    Returns:
        The settings, with ``latest`` in ``init_from`` replaced by the path of the run; and the parameters.

    Raises:
        ValueError: the parameters do not fit the workflow.
        RunFolderError: the run does not exist.
    """
    chosen = spec.init_from
    folder = find_run(chosen.run, spec.stored.runs_folder)
    spec = dataclasses.replace(spec, init_from=dataclasses.replace(chosen, run=str(folder.path)))
    parts = None if chosen.parts is None else list(chosen.parts)
    return spec, warm_start(workflow, folder.path, parts, chosen.which)


def begin_with(start: WarmStart, seed: int, recorder: Recorder) -> State:
    """Return the initial state, and log the source of its parameters."""
    for sentence in start.messages:
        recorder.message(sentence)
    return start.first_state(seed)
